"""`TritonJaxBackend`: the kernels over JAX arrays."""

import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paged.backends.triton.backend import TritonKernels
from paged.backends.triton.catalog import kernel_of
from paged.backends.triton.devices import cuda_device, rocm_device
from paged.backends.triton.interpreting import prepare_interpreter, run_launch
from paged.backends.triton.plan import Launch, Plan
from paged.backends.triton.planning import INTERPRETED, Device
from paged.layouts import KVCache, Layout
from paged.spec import AttentionSpec, KVCacheSpec

_USUAL_SMS = 128
"""Multiprocessors where JAX does not say how many there are."""


class TritonJaxBackend(TritonKernels):
    """Paged attention over JAX arrays on CUDA or ROCm, inside `jax.jit`.

    jax-triton compiles the kernels into the program. `write` is in place where the cache is
    donated. Under the interpreter each launch is a callback to the host, with the same plan.
    """

    name = "triton_jax"
    arrays = "jax"

    def __init__(self, *, interpret: bool = False, batch_invariant: bool = False) -> None:
        super().__init__(interpret=interpret, batch_invariant=batch_invariant)
        if interpret:
            prepare_interpreter()

    def unsupported(
        self,
        spec: AttentionSpec,
        layout: Layout,
        target: str,
        *,
        cache_spec: KVCacheSpec | None = None,
        query_dtype: str | None = None,
    ) -> list[str]:
        """See `Backend.unsupported`."""
        reasons = super().unsupported(
            spec, layout, target, cache_spec=cache_spec, query_dtype=query_dtype
        )
        if not self.interpret and importlib.util.find_spec("jax_triton") is None:
            reasons.append("needs jax-triton, which is not installed (pip install jax-triton)")
        return reasons

    def _own_platform(self) -> str:
        return "cuda"

    def _ready(self, given: dict[str, Any], cache: KVCache) -> dict[str, Any]:
        scales = {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
        if cache.layout.is_latent:
            scales["v_scale"] = cache.k_scale
        ready = {n: jnp.asarray(a) for n, a in given.items() if a is not None}
        ready |= {n: jnp.asarray(s, jnp.float32) for n, s in scales.items() if s is not None}
        if cache.dtype.startswith("float8"):
            ready["cache"] = jax.lax.bitcast_convert_type(ready["cache"], jnp.uint8)
        return ready

    def _device(self, arrays: dict[str, Any]) -> Device:
        if self.interpret:
            return INTERPRETED
        return _device_facts()

    def _strides(self, array: Any) -> tuple[Any, ...]:
        strides = np.cumprod((1, *reversed(array.shape)))[:-1][::-1]
        return tuple(int(stride) for stride in strides)

    def _run(self, plan: Plan, arrays: dict[str, Any]) -> dict[str, Any]:
        arrays = dict(arrays)
        shapes = {b.name: jax.ShapeDtypeStruct(b.shape, jnp.dtype(b.dtype)) for b in plan.buffers}
        for buffer in plan.buffers:
            if buffer.fill is not None:
                arrays[buffer.name] = jnp.full(buffer.shape, buffer.fill, jnp.dtype(buffer.dtype))
        for launch in plan.launches:
            outputs = [
                jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype)
                if name in arrays
                else shapes[name]
                for name in launch.outputs
            ]
            launched = _interpreted if self.interpret else _compiled
            results = launched(launch, [arrays[name] for name in launch.inputs], outputs)
            arrays |= dict(zip(launch.outputs, results, strict=True))
        return arrays

    def _written(self, plan: Plan, arrays: dict[str, Any], cache: KVCache) -> Any:
        data = self._run(plan, arrays)["cache"]
        if cache.dtype.startswith("float8"):
            data = jax.lax.bitcast_convert_type(data, jnp.dtype(cache.dtype))
        return data


def _compiled(launch: Launch, inputs: list[Any], outputs: list[Any]) -> list[Any]:
    """One launch inside the program that JAX compiles."""
    import jax_triton  # pyright: ignore[reportMissingImports]

    aliases = {launch.inputs.index(name): launch.outputs.index(name) for name in launch.updated}
    return jax_triton.triton_call(
        *inputs,
        *launch.scalars,
        kernel=kernel_of(launch.kernel),
        out_shape=outputs,
        grid=launch.grid,
        name=launch.kernel,
        num_warps=launch.warps,
        num_stages=launch.stages,
        input_output_aliases=aliases,
        FORM=launch.form,
    )


def _interpreted(launch: Launch, inputs: list[Any], outputs: list[Any]) -> list[Any]:
    """One launch as a callback to the host."""

    def on_host(*given: Any) -> list[np.ndarray]:
        arrays = dict(zip(launch.inputs, map(np.asarray, given), strict=True))
        for name, output in zip(launch.outputs, outputs, strict=True):
            if name in launch.updated:
                arrays[name] = np.array(arrays[name], copy=True)
            else:
                arrays[name] = np.full(output.shape, np.nan, output.dtype)
        run_launch(launch, arrays)
        return [arrays[name] for name in launch.outputs]

    return jax.pure_callback(on_host, outputs, *inputs, vmap_method="sequential")


@functools.cache
def _device_facts() -> Device:
    """Of JAX's first GPU."""
    device = jax.devices("gpu")[0]
    num_sms = int(getattr(device, "core_count", 0)) or _USUAL_SMS
    if "cuda" not in device.client.platform_version.lower():
        return rocm_device(num_sms)
    major, _, minor = str(device.compute_capability).partition(".")
    return cuda_device((int(major), int(minor or 0)), num_sms)
