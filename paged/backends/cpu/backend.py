"""The backend around the compiled kernels."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paged.backends.api import AttentionOutput, UnsupportedError
from paged.backends.base import Capabilities, KernelBackend
from paged.backends.cpu.build import LIBRARY, SOURCES, build
from paged.backends.cpu.library import Library, load_library
from paged.backends.cpu.pages import use_large_pages
from paged.layouts import LAYOUTS, KVCache, Layout, kv_strides
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec

PATH_VARIABLE = "PAGED_CPU_PATH"
"""Environment variable that names the kernels to take, where the argument does not."""


_MOST_THREADS = 2**31 - 1


class CpuBackend(KernelBackend):
    """C++ kernels over JAX arrays on the CPU, on XLA's own threads.

    Any layout is read by its strides. A result does not depend on the batch, nor on the number of
    threads: it is `batch_invariant`. Values that break the contract (a block out of range, a
    sequence longer than its table) are refused before memory is touched; called directly that is a
    ValueError, from a compiled program it is JAX's error with the same words.

    Args:
        path: kernels to take, "avx512_bf16", "avx512", "avx2", "baseline" (SSE2 or NEON) or
            "scalar"; by default what `PAGED_CPU_PATH` names, and without it the fastest that the
            machine runs.
        threads: at most so many of XLA's threads; all by default.
        library: another build of the kernels.
    """

    name = "cpu"
    platform = "cpu"
    # 2.3 ms for 10^9 in fp32 (latents, 256 queries after 4,096) where XLA's product takes 4.1.
    operation_cost = 0.55
    arrays = "jax"
    layouts = tuple(LAYOUTS.values())
    any_layout = True
    capabilities = Capabilities(batch_invariant=True)

    def __init__(
        self, *, path: str | None = None, threads: int | None = None, library: Path = LIBRARY
    ) -> None:
        if threads is not None and (
            isinstance(threads, bool)
            or not isinstance(threads, int)
            or not 1 <= threads <= _MOST_THREADS
        ):
            raise ValueError(
                f"threads: got {threads!r}, expected an integer from 1 to {_MOST_THREADS} or None"
            )
        found = load_library(library)
        self._missing = found if isinstance(found, str) else None
        self._library = None if isinstance(found, str) else found
        self._threads = threads or 0
        self._path = 0 if self._library is None else _path_number(self._library, path)

    @property
    def path(self) -> str | None:
        """The kernels that run; None without a library."""
        return None if self._library is None else self._library.paths[self._path]

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
        return reasons if self._missing is None else [*reasons, self._missing]

    def allocate(
        self, cache_spec: KVCacheSpec, layout: str | Layout, num_blocks: int, **arrays: Any
    ) -> KVCache:
        """A zero-filled cache on large pages where the system has them; see `KVCache.allocate`."""
        cache = KVCache.allocate(cache_spec, layout, num_blocks, **arrays)
        use_large_pages(cache.data)
        return cache

    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        library = self._loaded()
        data = jnp.asarray(cache.data)
        key = jnp.asarray(key)
        # A latent has no value: the key stands in its place, and is not looked at.
        value = key if value is None else jnp.asarray(value)
        if value.dtype != key.dtype:
            key, value = key.astype(jnp.float32), value.astype(jnp.float32)
        arguments = (
            *(key, value, jnp.asarray(slot_mapping)),
            *(_scale(cache.k_scale), _scale(cache.v_scale), data),
        )
        call = jax.ffi.ffi_call(
            library.write,
            jax.ShapeDtypeStruct(data.shape, data.dtype),
            input_output_aliases={len(arguments) - 1: 0},
        )
        written = _checked(
            lambda: call(*arguments, is_latent=cache.layout.is_latent, **self._common(cache))
        )
        return cache.with_data(written)

    def _attend(
        self,
        query: Any,
        cache: KVCache,
        metadata: AttentionMetadata,
        spec: AttentionSpec,
        sinks: Any,
    ) -> AttentionOutput:
        library = self._loaded()
        query = jnp.asarray(query)
        rows = query.shape[:2]
        # A value of a latent is part of its key, and has the scale of it.
        v_scale = cache.k_scale if spec.is_latent else cache.v_scale
        call = jax.ffi.ffi_call(
            library.attend,
            (
                jax.ShapeDtypeStruct((*rows, spec.value_dim), query.dtype),
                jax.ShapeDtypeStruct(rows, jnp.float32),
            ),
        )
        out, lse = _checked(
            lambda: call(
                *(query, jnp.asarray(cache.data), jnp.asarray(metadata.block_table)),
                *(jnp.asarray(metadata.seq_lens), jnp.asarray(metadata.query_start_loc)),
                *(_scale(cache.k_scale), _scale(v_scale), _scale(sinks)),
                kv_heads=np.int64(spec.num_kv_heads),
                value_dim=np.int64(spec.value_dim),
                window=np.int64(spec.window or 0),
                scale=np.float32(spec.scale),
                soft_cap=np.float32(spec.soft_cap or 0.0),
                **self._common(cache),
            )
        )
        return AttentionOutput(out, lse)

    @classmethod
    def rebuilt(
        cls,
        edited: Mapping[str, str],
        *,
        path: str = "scalar",
        flags: Iterable[str] = ("-O0",),
    ) -> "CpuBackend":
        """The backend compiled once more, from other sources or with other flags.

        Args:
            edited: the text of each source that differs, by file name.
            path: the kernels that are compiled; "scalar" is the quickest.
            flags: for the compiler; by default those that make the shortest build.

        Raises:
            BuildError: what the compiler says.
        """
        with tempfile.TemporaryDirectory(prefix="paged-cpu-") as folder:
            sources = Path(folder, "src")
            shutil.copytree(SOURCES, sources)
            for name, text in edited.items():
                (sources / name).write_text(text, encoding="utf-8")
            output = Path(folder, LIBRARY.name)
            return cls(
                path=path, library=build(output, sources=sources, paths=(path,), flags=flags)
            )

    def _loaded(self) -> Library:
        if self._library is None:
            raise UnsupportedError(f"backend {self.name}: {self._missing}")
        return self._library

    def _common(self, cache: KVCache) -> dict[str, Any]:
        """What both calls are told of the cache, and how to run."""
        strides = kv_strides(cache.layout, tuple(cache.data.shape))
        order = (strides.block, strides.slot, strides.head, strides.dim, strides.to_value)
        return {
            "strides": np.array(order, np.int64),
            "num_blocks": np.int64(cache.num_blocks),
            "block_size": np.int64(cache.block_size),
            "path": np.int64(self._path),
            "most_threads": np.int64(self._threads),
        }


def _path_number(library: Library, path: str | None) -> int:
    named = path if path is not None else os.environ.get(PATH_VARIABLE)
    if not named:
        return 0
    if named not in library.paths:
        name = "path" if path is not None else PATH_VARIABLE
        raise ValueError(
            f"{name}: got {named!r}, expected one of {', '.join(library.paths)} (what this machine "
            "runs)"
        )
    return library.paths.index(named)


def _scale(scale: Any) -> jax.Array:
    """Scales and sinks in float32, without entries where there are none."""
    return jnp.zeros(0) if scale is None else jnp.asarray(scale, jnp.float32).reshape(-1)


def _checked(call: Any) -> Any:
    """What a call gives; called directly, an error of the kernels is a ValueError.

    While JAX traces there is nothing to wait for, and nothing to fail.
    """
    try:
        return jax.block_until_ready(call())
    # A call that JAX has cached raises a ValueError of its own, with the code in front too.
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        _, _, why = str(error).partition("INVALID_ARGUMENT: ")
        if not why:
            raise
        raise ValueError(why) from error
