"""`TritonBackend`: the kernels over torch tensors."""

from typing import Any

import numpy as np
import torch

from paged.backends.triton.backend import TritonKernels
from paged.backends.triton.catalog import kernel_of
from paged.backends.triton.devices import cuda_device, rocm_device
from paged.backends.triton.interpreting import (
    is_interpreting,
    prepare_interpreter,
    run_interpreted,
)
from paged.backends.triton.plan import Plan
from paged.backends.triton.planning import INTERPRETED, Device
from paged.dtypes import storage_dtype
from paged.layouts import KVCache, Layout, check_scale_values, check_slots_fit
from paged.spec import KVCacheSpec


class TritonBackend(TritonKernels):
    """Paged attention over torch tensors, on CUDA or ROCm.

    Kernels go to torch's current stream and wait for nothing, so that calls may be captured in a
    graph. `write` writes into the tensor of the cache that it is given.
    """

    name = "triton"
    arrays = "torch"
    traceable = False

    def __init__(self, *, interpret: bool = False, batch_invariant: bool = False) -> None:
        super().__init__(interpret=interpret, batch_invariant=batch_invariant)
        if interpret:
            prepare_interpreter()
        self.device = None if interpret else "cuda"

    def allocate(
        self,
        spec: KVCacheSpec,
        layout: Layout,
        num_blocks: int,
        *,
        k_scale: Any = None,
        v_scale: Any = None,
        device: Any = None,
    ) -> KVCache:
        """A zero-filled cache of a torch tensor, as `KVCache.allocate` makes one for JAX.

        Args:
            spec: what is kept.
            layout: how it lies.
            num_blocks: physical blocks, the null block included.
            k_scale: see `KVCache`.
            v_scale: see `KVCache`.
            device: torch's; by default the current GPU, or the host for an interpreter.

        Raises:
            ValueError: the layout cannot hold the spec's cache, slots would not fit int32, a
                scale is not positive and finite or of another shape, or there is no GPU.
        """
        device = torch.device(device or self.device or "cpu")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device: this host has no GPU that torch can use, expected one, or "
                "TritonBackend(interpret=True)"
            )
        check_slots_fit(num_blocks, spec.block_size)
        check_scale_values(spec.num_kv_heads, k_scale=k_scale, v_scale=v_scale)
        shape = layout.shape(num_blocks, spec)
        data = torch.zeros(shape, dtype=getattr(torch, spec.dtype), device=device)
        return KVCache(data, layout, k_scale, v_scale)

    def _own_platform(self) -> str:
        return "rocm" if torch.version.hip else "cuda"

    def _ready(self, given: dict[str, Any], cache: KVCache) -> dict[str, Any]:
        given = {name: array for name, array in given.items() if array is not None}
        for name, array in given.items():
            if not isinstance(array, torch.Tensor):
                raise ValueError(f"{name}: got {type(array).__name__}, expected a torch tensor")
            if array.layout != torch.strided or array.is_neg():
                raise ValueError(
                    f"{name}: got a tensor that is sparse or a negative view, expected a plain one"
                )
            if array.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{name}: got a tensor that requires a gradient, which these kernels do not "
                    "give: expected it detached, or torch.no_grad()"
                )
        for name, array in given.items():
            self._check_device(name, array, given["cache"].device)
        data = given["cache"]
        for name, scale in (("k_scale", cache.k_scale), ("v_scale", cache.v_scale)):
            if scale is not None:
                given[name] = _on_device(scale, data.device)
        if cache.layout.is_latent and cache.k_scale is not None:
            given["v_scale"] = given["k_scale"]
        ready = {n: a.contiguous() if a.ndim == 1 else a for n, a in given.items()}
        if cache.dtype.startswith("float8"):
            ready["cache"] = data.view(torch.uint8)
        return ready

    def _check_device(self, name: str, array: torch.Tensor, device: torch.device) -> None:
        wanted = "cpu" if self.interpret else "cuda"
        if array.device.type != wanted:
            hint = "" if self.interpret else ", or interpreted() for a host without a GPU"
            raise ValueError(f"{name}: got a tensor on {array.device}, expected {wanted}{hint}")
        if array.device != device:
            raise ValueError(
                f"{name}: got a tensor on {array.device}, expected {device} as the cache"
            )

    def _device(self, arrays: dict[str, Any]) -> Device:
        if self.interpret:
            return INTERPRETED
        if is_interpreting():
            raise RuntimeError(
                "interpret: TRITON_INTERPRET=1 was set when triton was imported, expected it "
                "unset, or interpreted()"
            )
        device = arrays["cache"].device
        found = torch.cuda.get_device_properties(device)
        if torch.version.hip:
            return rocm_device(found.multi_processor_count)
        return cuda_device((found.major, found.minor), found.multi_processor_count)

    def _strides(self, array: Any) -> tuple[Any, ...]:
        return tuple(array.stride())

    def _run(self, plan: Plan, arrays: dict[str, Any]) -> dict[str, Any]:
        device = arrays["cache"].device
        arrays = dict(arrays)
        for buffer in plan.buffers:
            dtype = getattr(torch, buffer.dtype)
            if buffer.fill is None:
                arrays[buffer.name] = torch.empty(buffer.shape, dtype=dtype, device=device)
            else:
                arrays[buffer.name] = torch.full(
                    buffer.shape, buffer.fill, dtype=dtype, device=device
                )
        if self.interpret:
            run_interpreted(plan, {name: _as_numpy(array) for name, array in arrays.items()})
            return arrays
        # Triton launches on the current device, which need not be that of the tensors.
        with torch.cuda.device(device):
            for launch in plan.launches:
                kernel_of(launch.kernel)[launch.grid](
                    *(arrays[name] for name in launch.inputs),
                    *launch.scalars,
                    *(arrays[name] for name in launch.outputs),
                    FORM=launch.form,
                    num_warps=launch.warps,
                    num_stages=launch.stages,
                )
        return arrays

    def _written(self, plan: Plan, arrays: dict[str, Any], cache: KVCache) -> Any:
        if any(
            s == 0 and n > 1 for s, n in zip(cache.data.stride(), cache.data.shape, strict=True)
        ):
            raise ValueError("cache: got data of which several entries are one in memory")
        self._run(plan, arrays)
        return cache.data


def _on_device(scale: Any, device: torch.device) -> torch.Tensor:
    if isinstance(scale, torch.Tensor):
        return scale.detach().to(device, torch.float32).contiguous()
    if getattr(scale, "shape", ()):
        return torch.as_tensor(np.array(scale, np.float32), device=device)
    # A kernel fills it: nothing is copied from the host, so that a graph may capture it.
    return torch.full((), float(scale), dtype=torch.float32, device=device)


def _as_numpy(array: torch.Tensor) -> Any:
    """The same memory, which for types that numpy lacks is seen as ml_dtypes' ones."""
    name = str(array.dtype).removeprefix("torch.")
    if name == "bfloat16":
        return array.detach().view(torch.int16).numpy().view(storage_dtype(name))
    return array.detach().numpy()
