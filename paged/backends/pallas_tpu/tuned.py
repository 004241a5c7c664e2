"""Sizes that `paged lab tune` chose, and what it chooses among; see `paged.backends.tuned`."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import jax

from paged.backends.pallas_tpu.cells import Cells
from paged.backends.pallas_tpu.tiling import Sizes, Tilings, choose_tilings
from paged.backends.tuned import TunedFile, read_tuned
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

Call = Literal["decode", "prefill"]

FILE = Path(__file__).with_name("tuned.json")

_NAMES: dict[str, tuple[str, ...]] = {
    "decode": ("piece", "chunk"),
    "prefill": ("rows", "chunk", "step"),
}

# Larger pieces are fewer and longer products, and more idle columns for what a sequence does not
# fill. A chunk of 512 pays the latencies of the matrix units too often, one of 8,192 has no room.
_PIECES = (128, 256, 512)
_DECODE_CHUNKS = (1024, 2048, 4096)
_PREFILL_CHUNKS = ((512, 256), (1024, 256), (1024, 512))

# What PJRT has called the same chips.
_OTHER_NAMES = {"TPU v5e": "TPU v5 lite", "TPU v5p": "TPU v5", "TPU v6e": "TPU v6 lite"}


def tuned_sizes(spec: AttentionSpec, cells: Cells) -> dict[str, Sizes]:
    """The chosen sizes of each call for the device that is compiled for, where there are any.

    Raises:
        ValueError: the file is not what it should be.
    """
    kind = _device_kind()
    calls: tuple[Call, ...] = ("decode", "prefill")
    found = {call: _read(FILE).sizes(kind, call_shape(spec, cells, call)) for call in calls}
    return {call: sizes for call, sizes in found.items() if sizes is not None}


def call_shape(spec: AttentionSpec, cells: Cells, call: Call) -> dict[str, str | int]:
    """What of a call its sizes depend on."""
    return {
        "call": call,
        "lanes": cells.lanes,
        "num_kv_heads": spec.num_kv_heads,
        "group_size": spec.group_size,
        "cache_dtype": cells.dtype,
    }


def sizes_of(tilings: Tilings, call: Call) -> dict[str, int]:
    """The sizes of a call as the file has them."""
    return {name: getattr(getattr(tilings, call), name) for name in _NAMES[call]}


def candidates(
    spec: AttentionSpec, cells: Cells, block_size: int, metadata: AttentionMetadata
) -> Iterator[Tilings]:
    """What VMEM and this step have room for; the first is what is taken without a file."""

    def chosen(tuned: Mapping[str, Sizes]) -> Tilings:
        return choose_tilings(spec, cells, block_size, metadata, tuned=tuned)

    untuned = chosen({})
    yield untuned
    call: Call = "decode" if metadata.max_query_len == 1 else "prefill"
    wanted: list[dict[str, int]]
    if call == "decode":
        wanted = [{"piece": piece, "chunk": chunk} for chunk in _DECODE_CHUNKS for piece in _PIECES]
    else:
        rows = untuned.prefill.rows
        wanted = [
            {"rows": count, "chunk": chunk, "step": step}
            for count in dict.fromkeys((rows, 2 * rows, max(2, rows // 2)))
            for chunk, step in _PREFILL_CHUNKS
        ]
    for sizes in wanted:
        tilings = chosen({call: sizes})
        # What was cut down is another candidate, or none of those asked for.
        if tilings != untuned and sizes_of(tilings, call) == sizes:
            yield tilings


@lru_cache(maxsize=1)
def _read(path: Path) -> TunedFile:
    file = read_tuned(path)
    for index, entry in enumerate(file.entries):
        where = f"tuned file: {path}, entry {index}"
        names = _NAMES.get(entry["shape"].get("call"))
        if names is None or set(entry["sizes"]) != set(names):
            accepted = "; ".join(f"{call}: {', '.join(each)}" for call, each in _NAMES.items())
            raise ValueError(
                f"{where}: got call {entry['shape'].get('call')!r} with sizes "
                f"{', '.join(entry['sizes'])}, expected {accepted}"
            )
        _check_sizes(entry["sizes"], where)
    return file


def _check_sizes(sizes: Mapping[str, int], where: str) -> None:
    for name, size in sizes.items():
        # Powers of two stay multiples of each other and of blocks when a call cuts them down.
        is_whole = size >= 2 if name == "rows" else size >= 16 and size & (size - 1) == 0
        if not is_whole:
            expected = "at least 2" if name == "rows" else "a power of two from 16 on"
            raise ValueError(f"{where}: {name}: got {size}, expected {expected}")
    part = "piece" if "piece" in sizes else "step"
    if sizes[part] > sizes["chunk"]:
        raise ValueError(
            f"{where}: {part}: got {sizes[part]}, expected at most the chunk {sizes['chunk']}"
        )


def _device_kind() -> str:
    """Of the device that is compiled for."""
    described: Any = jax.sharding.get_abstract_mesh().abstract_device
    if described is None:
        config: Any = jax.config
        device = config.jax_default_device
        described = (
            device if isinstance(device, jax.Device) else jax.local_devices(backend=device)[0]
        )
    kind: str = described.device_kind
    return _OTHER_NAMES.get(kind, kind)
