"""The rules of the contract, checked: shapes while tracing, values on concrete arrays."""

from typing import Any

import numpy as np

from paged.dtypes import COMPUTE_DTYPES, dtype_name
from paged.metadata import NO_SLOT, NULL_BLOCK, AttentionMetadata
from paged.spec import AttentionSpec


def check_static(
    metadata: AttentionMetadata, *, query: Any, cache: Any, spec: AttentionSpec | None
) -> None:
    """Shapes and dtypes; see `AttentionMetadata.static_validate`."""
    _check_fields(metadata)
    if query is not None:
        _check_query(metadata, query, spec)
    if cache is not None and spec is not None:
        _check_cache(cache, spec)


def _check_fields(metadata: AttentionMetadata) -> None:
    rank = {
        "block_table": 2,
        "slot_mapping": 1,
        "seq_lens": 1,
        "query_start_loc": 1,
        "distribution": 1,
    }
    for name, expected in rank.items():
        array = getattr(metadata, name)
        if len(array.shape) != expected:
            raise ValueError(
                f"{name}: got shape {tuple(array.shape)}, expected {expected} dimension(s)"
            )
        if dtype_name(array.dtype) != "int32":
            raise ValueError(f"{name}: got dtype {dtype_name(array.dtype)}, expected int32")
    lengths = {
        "seq_lens": metadata.num_seqs,
        "query_start_loc": metadata.num_seqs + 1,
        "distribution": 3,
    }
    for name, expected in lengths.items():
        length = getattr(metadata, name).shape[0]
        if length != expected:
            raise ValueError(
                f"{name}: got length {length}, expected {expected} "
                f"(block_table has {metadata.num_seqs} rows)"
            )
    for name in ("max_query_len", "max_seq_len"):
        bound = getattr(metadata, name)
        if not isinstance(bound, int) or bound < 1:
            raise ValueError(f"{name}: got {bound!r}, expected a static integer of at least 1")


def _check_query(metadata: AttentionMetadata, query: Any, spec: AttentionSpec | None) -> None:
    shape = tuple(query.shape)
    if len(shape) != 3 or shape[0] != metadata.num_tokens:
        raise ValueError(
            f"query: got shape {shape}, expected (tokens, num_heads, head_dim) with "
            f"{metadata.num_tokens} tokens as in slot_mapping"
        )
    if dtype_name(query.dtype) not in COMPUTE_DTYPES:
        raise ValueError(
            f"query: got dtype {dtype_name(query.dtype)}, expected one of "
            f"{', '.join(COMPUTE_DTYPES)}"
        )
    if spec is not None:
        for axis, name in ((1, "num_heads"), (2, "head_dim")):
            if shape[axis] != getattr(spec, name):
                raise ValueError(
                    f"query.shape[{axis}]: got {shape[axis]}, expected {name} {getattr(spec, name)}"
                )


def _check_cache(cache: Any, spec: AttentionSpec) -> None:
    if cache.layout.is_latent != spec.is_latent:
        raise ValueError(
            f"cache: layout {cache.layout.name} "
            f"{'holds latents' if cache.layout.is_latent else 'holds keys and values'}, "
            f"the spec is {'latent (MLA)' if spec.is_latent else 'not latent'}"
        )
    # Where a layout pads, the cache's own sizes are those of what it could hold.
    if cache.layout.holds(tuple(cache.data.shape), spec.num_kv_heads, spec.head_dim):
        return
    for name in ("num_kv_heads", "head_dim"):
        if getattr(cache, name) != getattr(spec, name):
            raise ValueError(
                f"cache.{name}: got {getattr(cache, name)}, expected {getattr(spec, name)}"
            )


def check_values(
    metadata: AttentionMetadata,
    *,
    block_size: int | None,
    num_blocks: int | None,
    window: int | None,
    knows_window: bool,
) -> None:
    """Every rule on concrete values; see `AttentionMetadata.validate`.

    A window lets a manager return old blocks and leave the null block in their place. Where the
    window is not known (`knows_window` is False) any owned entry may therefore be the null block.
    """
    starts = _host(metadata.query_start_loc)
    seq_lens = _host(metadata.seq_lens)
    distribution = _host(metadata.distribution)
    _check_query_start_loc(starts, metadata.num_tokens)
    _check_distribution(distribution, metadata.num_seqs)
    query_lens = np.diff(starts)
    num_seqs = int(distribution[2])
    _check_padding(query_lens, seq_lens, num_seqs)
    _check_lengths(metadata, query_lens, seq_lens)
    _check_kinds(distribution, query_lens, seq_lens)
    if block_size is not None:
        table = _host(metadata.block_table)
        if not knows_window:
            first_seen = seq_lens
        elif window is None:
            first_seen = np.zeros_like(seq_lens)
        else:
            first_seen = np.maximum(seq_lens - query_lens - window + 1, 0)
        first_kept = first_seen if knows_window else seq_lens - query_lens
        _check_block_size(metadata, table, starts, seq_lens, block_size)
        _check_table(table, seq_lens, first_seen, block_size, num_blocks)
        _check_owned_once(table, seq_lens, first_kept, block_size)
        _check_slots(metadata, table, starts, seq_lens, block_size, num_blocks)


def _host(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    return np.asarray(array).astype(np.int64)


def _check_query_start_loc(starts: np.ndarray, num_tokens: int) -> None:
    if starts[0] != 0:
        raise ValueError(f"query_start_loc[0]: got {starts[0]}, expected 0")
    falls = np.flatnonzero(np.diff(starts) < 0)
    if falls.size:
        index = int(falls[0]) + 1
        raise ValueError(
            f"query_start_loc[{index}]: got {starts[index]}, expected at least "
            f"{starts[index - 1]} (query_start_loc[{index - 1}])"
        )
    if starts[-1] > num_tokens:
        raise ValueError(
            f"query_start_loc[{len(starts) - 1}]: got {starts[-1]}, expected at most "
            f"{num_tokens} (the length of slot_mapping)"
        )


def _check_distribution(distribution: np.ndarray, rows: int) -> None:
    previous = 0
    for index, end in enumerate(distribution.tolist()):
        if not previous <= end <= rows:
            raise ValueError(
                f"distribution[{index}]: got {end}, expected {previous} <= value <= {rows}"
            )
        previous = end


def _check_padding(query_lens: np.ndarray, seq_lens: np.ndarray, num_seqs: int) -> None:
    for name, lens in (("query_start_loc", query_lens), ("seq_lens", seq_lens)):
        used = np.flatnonzero(lens[num_seqs:])
        if used.size:
            index = num_seqs + int(used[0])
            what = "a query of length" if name == "query_start_loc" else "got"
            raise ValueError(
                f"{name}[{index}]: {what} {lens[index]}, expected 0 in padding "
                f"(distribution[2] is {num_seqs})"
            )


def _check_lengths(
    metadata: AttentionMetadata, query_lens: np.ndarray, seq_lens: np.ndarray
) -> None:
    for index, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
        if seq_len < query_len:
            raise ValueError(
                f"seq_lens[{index}]: got {seq_len}, expected at least its query length {query_len}"
            )
        if query_len > metadata.max_query_len:
            raise ValueError(
                f"query_start_loc[{index + 1}]: sequence {index} has query length {query_len}, "
                f"expected at most max_query_len {metadata.max_query_len}"
            )
        if seq_len > metadata.max_seq_len:
            raise ValueError(
                f"seq_lens[{index}]: got {seq_len}, expected at most max_seq_len "
                f"{metadata.max_seq_len}"
            )


def _check_kinds(distribution: np.ndarray, query_lens: np.ndarray, seq_lens: np.ndarray) -> None:
    decode_end, prefill_end, num_seqs = distribution.tolist()
    for index in range(num_seqs):
        query_len, seq_len = int(query_lens[index]), int(seq_lens[index])
        if index < decode_end and query_len != 1:
            raise ValueError(
                f"distribution[0]: got {decode_end}, but sequence {index} has query length "
                f"{query_len}, expected 1"
            )
        if index >= decode_end and query_len == 1:
            raise ValueError(
                f"distribution[0]: got {decode_end}, but sequence {index} has query length 1, "
                "expected those first"
            )
        if decode_end <= index < prefill_end and query_len != seq_len:
            raise ValueError(
                f"distribution[1]: got {prefill_end}, but sequence {index} has query length "
                f"{query_len} and seq_len {seq_len}, expected them equal"
            )


def _check_block_size(
    metadata: AttentionMetadata,
    table: np.ndarray,
    starts: np.ndarray,
    seq_lens: np.ndarray,
    block_size: int,
) -> None:
    """Slots are not throughout those of another block size.

    Which one is known where `max_seq_len` is what the table has room for, as a builder makes it.
    """
    built, rest = divmod(metadata.max_seq_len, max(table.shape[1], 1))
    if rest or not table.shape[1] or built == block_size:
        return
    slots = _host(metadata.slot_mapping)[: starts[-1]]
    fits = {
        size: (slots == _table_slots(table, starts, seq_lens, size)) | (slots == NO_SLOT)
        for size in (built, block_size)
    }
    if fits[built].all() and not fits[block_size].all():
        raise ValueError(
            f"slot_mapping: got the slots of blocks of {built} tokens, expected those of blocks of "
            f"{block_size}: the metadata was built for another block size"
        )


def _table_slots(
    table: np.ndarray, starts: np.ndarray, seq_lens: np.ndarray, block_size: int
) -> np.ndarray:
    """Where the table says that each token of a query lies; negative past the table's end."""
    query_lens = np.diff(starts)
    sequence_of = np.repeat(np.arange(len(seq_lens)), query_lens)
    position = (seq_lens - query_lens - starts[:-1])[sequence_of] + np.arange(len(sequence_of))
    logical, within = np.divmod(position, block_size)
    block = table[sequence_of, np.minimum(logical, table.shape[1] - 1)]
    return np.where(logical < table.shape[1], block * block_size + within, NO_SLOT - 1)


def _check_table(
    table: np.ndarray,
    seq_lens: np.ndarray,
    first_seen: np.ndarray,
    block_size: int,
    num_blocks: int | None,
) -> None:
    """Owned entries are blocks of the pool; those that a query sees are not the null block."""
    limit = 2**31 if num_blocks is None else num_blocks
    for row, seq_len in enumerate(seq_lens.tolist()):
        count = -(-seq_len // block_size)
        if count > table.shape[1]:
            raise ValueError(
                f"block_table[{row}]: has {table.shape[1]} entries, expected at least {count} "
                f"for seq_lens[{row}] = {seq_len} and block size {block_size}"
            )
        blocks = table[row, :count]
        lowest = np.where(np.arange(count) < first_seen[row] // block_size, NULL_BLOCK, 1)
        wrong = np.flatnonzero((blocks < lowest) | (blocks >= limit))
        if wrong.size:
            column = int(wrong[0])
            raise ValueError(
                f"block_table[{row}, {column}]: got block {blocks[column]}, expected "
                f"{lowest[column]} <= block < {limit}"
            )


def _check_owned_once(
    table: np.ndarray, seq_lens: np.ndarray, first_kept: np.ndarray, block_size: int
) -> None:
    """No row has a block twice from `first_kept` on: its positions would overwrite each other.

    Earlier entries are not compared. A window leaves the null block there, and where a kernel's
    blocks are smaller than the manager's that is several of them, again and again.
    """
    for row, seq_len in enumerate(seq_lens.tolist()):
        blocks = table[row, : -(-seq_len // block_size)]
        order = np.argsort(blocks, kind="stable")
        same = (blocks[order][1:] == blocks[order][:-1]) & (blocks[order][1:] != NULL_BLOCK)
        same &= order[1:] >= first_kept[row] // block_size
        twice = np.flatnonzero(same)
        if twice.size:
            first, second = order[twice[0] : twice[0] + 2].tolist()
            raise ValueError(
                f"block_table[{row}, {second}]: got block {blocks[second]}, which the row already "
                f"owns at block_table[{row}, {first}], expected each block once in a row"
            )


def _check_slots(
    metadata: AttentionMetadata,
    table: np.ndarray,
    starts: np.ndarray,
    seq_lens: np.ndarray,
    block_size: int,
    num_blocks: int | None,
) -> None:
    slots = _host(metadata.slot_mapping)
    expected = np.full(len(slots), NO_SLOT, np.int64)
    total = int(starts[-1])
    expected[:total] = _table_slots(table, starts, seq_lens, block_size)
    if num_blocks is not None and num_blocks * block_size >= 2**31:
        raise ValueError(
            f"num_blocks: got {num_blocks} blocks of {block_size} slots, expected fewer than "
            f"{2**31} slots in all so that a slot fits int32"
        )
    written = slots != NO_SLOT
    null = np.flatnonzero(written & (slots >= 0) & (slots < block_size))
    if null.size:
        index = int(null[0])
        raise ValueError(
            f"slot_mapping[{index}]: got {slots[index]}, expected at least {block_size} or -1: "
            f"the null block is never written (block size {block_size})"
        )
    wrong = np.flatnonzero(written & (slots != expected))
    if wrong.size:
        index = int(wrong[0])
        raise ValueError(
            f"slot_mapping[{index}]: got {slots[index]}, expected {expected[index]} as the "
            f"block table says for block size {block_size}"
            if index < total
            else f"slot_mapping[{index}]: got {slots[index]}, expected -1 in padding "
            f"(query_start_loc ends at {total})"
        )
    unique, counts = np.unique(slots[written], return_counts=True)
    if (counts > 1).any():
        slot = int(unique[np.argmax(counts > 1)])
        first, second = np.flatnonzero(slots == slot)[:2].tolist()
        raise ValueError(
            f"slot_mapping[{second}]: got {slot}, already written by slot_mapping[{first}]"
        )
