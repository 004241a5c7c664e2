"""The CPU kernels in a process of their own, which may be for another processor and emulated.

It is spoken to through its stdin and stdout (emulated_driver.cc): a call is numbers and the bytes
of arrays. Nothing here knows what the kernels are compiled for.
"""

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paged.backends.api import AttentionOutput
from paged.backends.base import KernelBackend
from paged.backends.cpu.backend import CpuBackend
from paged.backends.cpu.build import _FLAGS, _WARNINGS, SOURCES
from paged.dtypes import STORAGE_DTYPES, dtype_name
from paged.layouts import KVCache, kv_strides
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

PATHS = {"baseline": 4, "scalar": 1}
"""Floats in a vector of what every processor has: SSE2, or NEON."""

_DRIVER = Path(__file__).with_name("emulated_driver.cc")


def built_driver(compiler: str, folder: Path, *, more: Sequence[str] = ()) -> Path:
    """The driver with all of `PATHS`, compiled as the library is.

    Args:
        compiler: of the processor that it is for.
        folder: where it and its objects go.
        more: flags after the usual ones.
    """
    common = [compiler, *_FLAGS, *_WARNINGS, *more, f"-I{SOURCES}", "-pthread"]
    objects = []
    for path, lanes in PATHS.items():
        objects.append(str(folder / f"{path}.o"))
        own = [f"-DPAGED_PATH={path}", f"-DPAGED_LANES={lanes}", "-c", str(SOURCES / "kernels.cc")]
        subprocess.run([*common, *own, "-o", objects[-1]], check=True)
    driver = folder / "driver"
    known = [*(f"-DPAGED_HAS_{path}" for path in PATHS), '-DPAGED_DIGEST=""']
    rest = [str(SOURCES / "schedule.cc"), str(SOURCES / "paths.cc"), str(_DRIVER)]
    subprocess.run([*common, *known, *objects, *rest, "-o", str(driver)], check=True)
    return driver


class DriverBackend(KernelBackend):
    """The kernels of a driver, over numpy arrays, on one thread.

    A context, whose end ends the process.

    Args:
        command: starts the driver, under an emulator where it needs one.
        path: one of `PATHS`.
        flushes: whether numbers below the smallest normal one count as 0, as on XLA's threads.
    """

    name = "cpu_driver"
    platform = "cpu"
    arrays = "numpy"
    traceable = False
    layouts = CpuBackend.layouts
    any_layout = True
    capabilities = CpuBackend.capabilities

    def __init__(self, command: Sequence[str], path: str, *, flushes: bool = False) -> None:
        self._process = subprocess.Popen(
            [*command, path, *(["flush"] if flushes else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def __enter__(self) -> "DriverBackend":
        return self

    def __exit__(self, *_: object) -> None:
        self._to.close()
        self._from.close()
        if self._process.wait():
            raise RuntimeError(f"driver: ended with {self._process.returncode}")

    def _write(self, cache: KVCache, key: Any, value: Any, slot_mapping: Any) -> KVCache:
        if value is not None and value.dtype != key.dtype:
            key, value = key.astype(np.float32), value.astype(np.float32)
        tokens, heads, dim = key.shape
        numbers = [0, *_types(key, cache.data), *_strides(cache), cache.num_blocks, tokens]
        numbers += [cache.block_size, heads, dim]
        arrays = [key, value, slot_mapping, *_floats(cache.k_scale, cache.v_scale), cache.data]
        (data,) = self._asked(numbers, arrays, [cache.data])
        return cache.with_data(data)

    def _attend(
        self,
        query: Any,
        cache: KVCache,
        metadata: AttentionMetadata,
        spec: AttentionSpec,
        sinks: Any,
    ) -> AttentionOutput:
        tokens = query.shape[0]
        seqs, width = metadata.block_table.shape
        numbers = [1, *_types(query, cache.data), *_strides(cache), cache.num_blocks]
        numbers += [tokens, seqs, width, cache.block_size, spec.num_kv_heads, spec.group_size]
        numbers += [spec.head_dim, spec.value_dim, spec.window or 0]
        v_scale = cache.k_scale if spec.is_latent else cache.v_scale
        factors = np.array([spec.scale, spec.soft_cap or 0.0])
        arrays = [query, cache.data, metadata.block_table, metadata.seq_lens]
        arrays += [metadata.query_start_loc, *_floats(cache.k_scale, v_scale, sinks, factors)]
        results = [
            np.empty((tokens, spec.num_heads, spec.value_dim), query.dtype),
            np.empty((tokens, spec.num_heads), np.float32),
        ]
        return AttentionOutput(*self._asked(numbers, arrays, results))

    def _asked(
        self, numbers: Sequence[int], arrays: Sequence[Any], results: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """New arrays like `results`.

        Raises:
            ValueError: the driver refused the values, in its words.
        """
        self._to.write(struct.pack(f"<{len(numbers)}q", *numbers))
        for array in arrays:
            data = b"" if array is None else np.ascontiguousarray(array).tobytes()
            self._to.write(struct.pack("<q", len(data)) + data)
        self._to.flush()
        why = self._answer()
        answers = [self._answer() for _ in results]
        if why:
            raise ValueError(why.decode())
        return [
            np.frombuffer(answer, np.uint8).copy().view(like.dtype).reshape(like.shape)
            for answer, like in zip(answers, results, strict=True)
        ]

    def _answer(self) -> bytes:
        size = self._from.read(8)
        if len(size) != 8:
            raise RuntimeError(f"driver: ended with {self._process.wait()}")
        return self._from.read(struct.unpack("<q", size)[0])


def _types(computed: Any, stored: Any) -> list[int]:
    """As the kernels number them, which is the order of the names."""
    return [STORAGE_DTYPES.index(dtype_name(array.dtype)) for array in (computed, stored)]


def _strides(cache: KVCache) -> list[int]:
    strides = kv_strides(cache.layout, tuple(cache.data.shape))
    return [strides.block, strides.slot, strides.head, strides.dim, strides.to_value]


def _floats(*arrays: Any) -> list[Any]:
    return [None if array is None else np.asarray(array, np.float32) for array in arrays]
