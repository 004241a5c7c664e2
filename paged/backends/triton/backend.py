"""What both front ends have in common: claims, and from arguments to a plan."""

import importlib.util
from abc import abstractmethod
from typing import Any

from paged.backends.api import AttentionOutput
from paged.backends.base import Capabilities, KernelBackend
from paged.backends.triton.plan import ABSENT, Plan
from paged.backends.triton.planning import CacheShape, Device, Step, plan_attend, plan_write
from paged.dtypes import dtype_name
from paged.layouts import (
    FLASH_ATTN,
    FLASHINFER,
    FLASHINFER_HND,
    MLA,
    PACKED,
    PALLAS,
    KVCache,
    Layout,
    kv_strides,
)
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec

_MOST_HEAD_DIM = 256
_MOST_VALUE_DIM = 512
_MOST_ROPE_DIM = 128

if importlib.util.find_spec("triton") is None:
    raise ModuleNotFoundError("needs triton", name="triton")


class TritonKernels(KernelBackend):
    """The kernels of `paged.backends.triton.kernels`, over some library's arrays.

    Any layout is read by its strides. A front end says how arrays become ready (`_ready`), what
    their device is, and how a plan runs over them.

    Args:
        interpret: whether triton's interpreter runs the kernels, on any host.
        batch_invariant: whether a sequence's results are bit for bit the same in any batch; keys
            are then cut into parts of one size, which may leave a small batch slower.
    """

    layouts = (FLASH_ATTN, FLASHINFER, FLASHINFER_HND, PACKED, PALLAS, MLA)
    any_layout = True
    traceable = True

    def __init__(self, *, interpret: bool = False, batch_invariant: bool = False) -> None:
        for name, flag in (("interpret", interpret), ("batch_invariant", batch_invariant)):
            if not isinstance(flag, bool):
                raise ValueError(f"{name}: got {flag!r}, expected True or False")
        self.interpret = interpret
        self.capabilities = Capabilities(batch_invariant=batch_invariant)
        self.platform = "any" if interpret else self._own_platform()

    def interpreted(self) -> "TritonKernels":
        """The same kernels by triton's interpreter, on any host.

        Raises:
            RuntimeError: triton was imported already, and compiles.
        """
        return type(self)(interpret=True, batch_invariant=self.capabilities.batch_invariant)

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
        limits = [("head_dim", spec.head_dim, _MOST_HEAD_DIM)]
        if spec.is_latent:
            rope = spec.head_dim - spec.value_dim
            limits = [
                ("kv_lora_rank", spec.value_dim, _MOST_VALUE_DIM),
                ("qk_rope_head_dim", rope, _MOST_ROPE_DIM),
            ]
        return reasons + [
            f"{name} {asked}, accepted: up to {most}"
            for name, asked, most in limits
            if asked > most
        ]

    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        given = {"key": key, "value": value, "slot_mapping": slot_mapping, "cache": cache.data}
        arrays = self._ready(given, cache)
        plan = plan_write(
            self._cache_shape(cache),
            self._device(arrays),
            num_tokens=key.shape[0],
            num_heads=key.shape[1],
            head_dim=key.shape[2],
            key_strides=self._strides(arrays["key"]),
            value_strides=self._strides(arrays["key" if value is None else "value"]),
        )
        arrays[ABSENT] = arrays["slot_mapping"]
        return cache.with_data(self._written(plan, arrays, cache))

    def _attend(
        self,
        query: Any,
        cache: KVCache,
        metadata: AttentionMetadata,
        spec: AttentionSpec,
        sinks: Any,
    ) -> AttentionOutput:
        given = {
            "query": query,
            "cache": cache.data,
            "block_table": metadata.block_table,
            "seq_lens": metadata.seq_lens,
            "query_start_loc": metadata.query_start_loc,
            "sinks": sinks,
        }
        arrays = self._ready(given, cache)
        step = Step(
            num_seqs=metadata.num_seqs,
            num_tokens=metadata.num_tokens,
            max_query_len=metadata.max_query_len,
            max_seq_len=metadata.max_seq_len,
            query_dtype=dtype_name(query.dtype),
            query_strides=self._strides(arrays["query"]),
            table_strides=self._strides(arrays["block_table"]),
        )
        plan = plan_attend(
            spec,
            self._cache_shape(cache),
            step,
            self._device(arrays),
            batch_invariant=self.capabilities.batch_invariant,
        )
        arrays[ABSENT] = arrays["query_start_loc"]
        results = self._run(plan, arrays)
        return AttentionOutput(results["out"], results["lse"])

    def _cache_shape(self, cache: KVCache) -> CacheShape:
        shape = tuple(cache.data.shape)
        return CacheShape(
            dtype=cache.dtype,
            block_size=cache.block_size,
            num_blocks=cache.num_blocks,
            strides=kv_strides(cache.layout, shape, self._strides(cache.data)),
            is_latent=cache.layout.is_latent,
            k_scale=_kind(cache.k_scale),
            v_scale=_kind(cache.v_scale),
        )

    @abstractmethod
    def _own_platform(self) -> str:
        """The platform that compiled kernels run on."""

    @abstractmethod
    def _ready(self, given: dict[str, Any], cache: KVCache) -> dict[str, Any]:
        """The arrays as kernels take them, absent ones left out, scales added.

        Float8 as its bits; arrays of one dimension contiguous; scales in float32.
        """

    @abstractmethod
    def _device(self, arrays: dict[str, Any]) -> Device:
        """What the plan needs to know of the device on which the arrays lie."""

    @abstractmethod
    def _strides(self, array: Any) -> tuple[Any, ...]:
        """In elements."""

    @abstractmethod
    def _run(self, plan: Plan, arrays: dict[str, Any]) -> dict[str, Any]:
        """Runs a plan; the arrays by name, results among them."""

    @abstractmethod
    def _written(self, plan: Plan, arrays: dict[str, Any], cache: KVCache) -> Any:
        """Runs the plan of a write; the cache's array after it."""


def _kind(scale: Any) -> str:
    if scale is None:
        return "none"
    return "heads" if getattr(scale, "shape", ()) else "one"
