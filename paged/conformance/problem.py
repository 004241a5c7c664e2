"""Numbers for a setup: pools full of NaN, scattered blocks, and data of each sequence's own."""

from dataclasses import dataclass, replace
from itertools import pairwise
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Float, Shaped

from paged.backends.reference.addressing import KEYS, VALUES, addresses
from paged.backends.reference.writing import write_into
from paged.conformance.setup import Setup
from paged.dtypes import storage_dtype
from paged.layouts import KVCache, Layout
from paged.metadata import NO_SLOT, NULL_BLOCK, AttentionMetadata
from paged.spec import AttentionSpec, KVCacheSpec

# Sinks are in units of logits, whose standard deviation is near 1.
_SINKS = {"positive": [2.5, 0.5], "negative": [-2.5, -0.5], "minus_inf": [-np.inf]}
_SINKS["mixed"] = [3.0, -np.inf, -3.0, 20.0]
_LARGE = 64.0


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's numbers.

    Attributes:
        query: of its last query_len tokens, in the query's dtype.
        key: of all its tokens, in the query's dtype.
        value: likewise; in a latent cache the key's first part.
        is_nan: whether its numbers are NaN, so that nothing is expected of it.
    """

    query: Shaped[np.ndarray, "query_len num_heads head_dim"]
    key: Shaped[np.ndarray, "seq_len num_kv_heads head_dim"]
    value: Shaped[np.ndarray, "seq_len num_kv_heads head_dim"]
    is_nan: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """One call of write and one of attend, all in numpy.

    Attributes:
        setup: what it was made from.
        spec: the attention asked for.
        dtype: of queries, and of keys and values to be written.
        rows: each sequence's numbers.
        query: `[T, num_heads, head_dim]`; NaN in padding.
        key: `[T, num_kv_heads, head_dim]`; finite in padding, so that a stray write shows.
        value: likewise; None in a latent layout.
        cache: before the write.
        metadata: the kernel's.
        sinks: `[num_heads]` or None.
        expected: which tokens have an expected result.
        place: `[T, 2]` physical block and offset of each token; -1 in padding.
    """

    setup: Setup
    spec: AttentionSpec
    dtype: str
    rows: tuple[Row, ...]
    query: Shaped[np.ndarray, "T num_heads head_dim"]
    key: Shaped[np.ndarray, "T num_kv_heads head_dim"]
    value: Shaped[np.ndarray, "T num_kv_heads head_dim"] | None
    cache: KVCache
    metadata: AttentionMetadata
    sinks: Float[np.ndarray, " num_heads"] | None
    expected: Bool[np.ndarray, " T"]
    place: Shaped[np.ndarray, "T 2"]

    def with_pool(self, data: np.ndarray) -> "Problem":
        """The same problem over another pool."""
        return replace(self, cache=self.cache.with_data(data))


def generator(seed: int, *words: object) -> np.random.Generator:
    """Random numbers that depend on the seed and on the words, not on the order of calls."""
    return np.random.default_rng([seed, crc32("/".join(map(str, words)).encode())])


def build(setup: Setup, layout: Layout, dtype: str, seed: int, name: str = "") -> Problem:
    """The problem of a setup, a seed and a case's name."""
    rows = draw_rows(setup, layout, dtype, seed, name)
    return assemble(rows, setup, layout, dtype, generator(seed, name, "pool"))


def draw_rows(
    setup: Setup, layout: Layout, dtype: str, seed: int, name: str = ""
) -> tuple[Row, ...]:
    """Each sequence's numbers; those of sequence i do not depend on the other sequences."""
    spec = setup.spec(layout)
    return tuple(
        _draw_row(setup, spec, dtype, index, generator(seed, name, "row", index))
        for index in range(len(setup.sequences))
    )


def _draw_row(
    setup: Setup, spec: AttentionSpec, dtype: str, index: int, rng: np.random.Generator
) -> Row:
    query_len, seq_len = setup.sequences[index]
    query = rng.normal(size=(query_len, spec.num_heads, spec.head_dim))
    key = rng.normal(size=(seq_len, spec.num_kv_heads, spec.head_dim))
    value = rng.normal(size=key.shape)
    is_nan = setup.data == "nan_neighbour" and index == 1
    if is_nan:
        query[:], key[:], value[:] = np.nan, np.nan, np.nan
    elif setup.data in ("rising", "falling"):
        # Along the last query of each group, so that the largest logit comes last, or first.
        ramp = np.linspace(0, 6, seq_len) * (1 if setup.data == "rising" else -1)
        shared = query.reshape(query_len, spec.num_kv_heads, -1, spec.head_dim)[-1].mean(axis=1)
        direction = shared / (shared**2).sum(axis=-1, keepdims=True) / spec.scale
        key += ramp[:, None, None] * direction
    elif setup.data in ("same", "opposite", "both_signs"):
        query[:], key[:] = _LARGE, _LARGE
        if setup.data == "opposite":
            key[:] = -_LARGE
        elif setup.data == "both_signs":
            key[rng.random(seq_len) < 0.5] *= -1
    elif setup.data == "saturating":
        far = rng.random(key.shape) < 0.05
        key[far] *= 1e4
        value[rng.random(key.shape) < 0.05] *= 1e4
    # Values of a sequence lie around a number of its own: a neighbour's block cannot pass.
    value += 0.5 * (index % 5) - 1
    storage = storage_dtype(dtype)
    return Row(query.astype(storage), key.astype(storage), value.astype(storage), is_nan)


def assemble(
    rows: tuple[Row, ...],
    setup: Setup,
    layout: Layout,
    dtype: str,
    rng: np.random.Generator,
) -> Problem:
    """Puts sequences into a pool and makes the step of them.

    Args:
        rows: as many as `setup.sequences`, in the contract's order.
        setup: shapes, features and hostility.
        layout: of the cache.
        dtype: of the rows.
        rng: chooses blocks, invalid ids and garbage.
    """
    spec = setup.spec(layout)
    cache_spec = setup.cache_spec(layout, dtype)
    block_size = setup.block_size * setup.manager_ratio
    lens = np.array([(len(row.query), len(row.key)) for row in rows], np.int64).reshape(-1, 2)
    query_lens, seq_lens = lens[:, 0], lens[:, 1]
    owned = _place(setup, seq_lens, block_size, rng)
    table = _table(setup, owned, query_lens, seq_lens, block_size, rng)
    k_scale, v_scale = _scale(setup.k_scale, spec), _scale(setup.v_scale, spec)
    if layout.is_latent:
        v_scale = None

    pool = poisoned(
        setup, layout, layout.shape(setup.num_blocks, cache_spec), cache_spec.dtype, rng
    )
    if layout.is_padded:
        pool[~_content(layout, setup.num_blocks, cache_spec)] = 0
    cache = KVCache(pool, layout, k_scale, v_scale)
    starts = np.zeros(setup.num_seqs + 1, np.int32)
    starts[1:] = np.cumsum(np.pad(query_lens, (0, setup.num_seqs - len(rows))))
    slots = np.full(setup.num_tokens, NO_SLOT, np.int32)
    place = np.full((setup.num_tokens, 2), -1, np.int64)
    for index, row in enumerate(rows):
        positions = np.arange(seq_lens[index])
        flat = np.array(owned[index], np.int64)[positions // block_size] * block_size
        flat += positions % block_size
        written_before = _written_before(setup, int(query_lens[index]), int(seq_lens[index]))
        first_new = int(seq_lens[index] - query_lens[index])
        first_kept = 0
        if setup.window is not None:
            first_kept = max(first_new - setup.window + 1, 0) // block_size * block_size
        _fill(cache, row, flat, slice(first_kept, written_before))
        tokens = slice(int(starts[index]), int(starts[index + 1]))
        place[tokens] = np.stack(np.divmod(flat[first_new:], setup.block_size), axis=-1)
        new = flat[first_new:].astype(np.int32)
        new[: written_before - first_new] = NO_SLOT
        slots[tokens] = new

    total = int(starts[-1])
    query, key, value = (_padded_tokens(rows, part, setup, spec, dtype, rng) for part in _PARTS)
    seq_lens_padded = np.zeros(setup.num_seqs, np.int32)
    seq_lens_padded[: len(rows)] = seq_lens
    metadata = AttentionMetadata(
        block_table=table,
        slot_mapping=slots,
        seq_lens=seq_lens_padded,
        query_start_loc=starts,
        distribution=_distribution(query_lens, seq_lens),
        max_query_len=setup.max_query_len,
        max_seq_len=setup.max_seq_len,
    )
    if setup.manager_ratio > 1:
        metadata = metadata.with_kernel_blocks(setup.manager_ratio)
    expected = np.ones(setup.num_tokens, bool)
    for index, row in enumerate(rows):
        expected[starts[index] : starts[index + 1]] = not row.is_nan
    query[total:] = np.nan
    sinks = None
    if setup.sinks is not None:
        sinks = np.resize(np.array(_SINKS[setup.sinks], np.float32), spec.num_heads)
    return Problem(
        setup=setup,
        spec=spec,
        dtype=dtype,
        rows=rows,
        query=query,
        key=key,
        value=None if layout.is_latent else value,
        cache=cache,
        metadata=metadata,
        sinks=sinks,
        expected=expected,
        place=place,
    )


_PARTS = ("query", "key", "value")


def poisoned(
    setup: Setup, layout: Layout, shape: tuple[int, ...], storage: str, rng: np.random.Generator
) -> np.ndarray:
    """A pool that nobody has written to."""
    dtype = storage_dtype(storage)
    where = addresses(layout, shape)
    extremes = np.array([-127, 127] if dtype.kind == "i" else [-400.0, 400.0]).astype(dtype)
    garbage = rng.choice(extremes, size=shape)
    if setup.poison == "zero":
        return np.zeros(shape, dtype)
    if setup.poison == "garbage" or dtype.kind == "i":
        return garbage
    if setup.poison == "inf":
        return rng.choice(np.array([-np.inf, np.inf]).astype(dtype), size=shape)
    pool = np.full(shape, np.nan, dtype)
    if setup.poison in ("nan_keys", "nan_values") and not layout.is_latent:
        finite = VALUES if setup.poison == "nan_keys" else KEYS
        is_finite = np.arange(pool.size) // where.stride["kv"] % 2 == finite
        pool.reshape(-1)[is_finite] = garbage.reshape(-1)[is_finite]
    return pool


def _content(layout: Layout, num_blocks: int, cache_spec: KVCacheSpec) -> Bool[np.ndarray, "..."]:
    """Which numbers of a pool are no padding; padding is zero from allocation on."""
    unpadded = Layout(layout.name, layout.pattern).shape(num_blocks, cache_spec)
    return layout.padded(np.ones(unpadded, storage_dtype(cache_spec.dtype))).astype(bool)


def _place(
    setup: Setup, seq_lens: np.ndarray, block_size: int, rng: np.random.Generator
) -> list[list[int]]:
    """Physical blocks (the manager's) of each sequence."""
    counts = [-(-int(seq_len) // block_size) for seq_len in seq_lens]
    total, available = sum(counts), setup.num_blocks // setup.manager_ratio - 1
    if total > available:
        raise ValueError(f"num_blocks: {available} blocks to give, the sequences need {total}")
    ids = np.arange(1, available + 1)
    if setup.placement == "permuted":
        rng.shuffle(ids)
        # The tail of the first sequence is block 1, that of the last sequence the last block.
        for block, index in ((1, max(counts[0], 1) - 1), (available, max(total, 1) - 1)):
            at = int(np.flatnonzero(ids == block)[0])
            ids[[at, index]] = ids[[index, at]]
    bounds = np.cumsum([0, *counts])
    return [ids[start:end].tolist() for start, end in pairwise(bounds)]


def _table(
    setup: Setup,
    owned: list[list[int]],
    query_lens: np.ndarray,
    seq_lens: np.ndarray,
    block_size: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The manager's table: invalid ids past the end, the null block in padding rows."""
    table = np.full((setup.num_seqs, setup.table_width), NULL_BLOCK, np.int32)
    invalid = np.array([2**31 - 1, -1, setup.num_blocks, -(2**31), setup.num_blocks + 9, 1])
    for index, blocks in enumerate(owned):
        table[index] = rng.choice(invalid, size=setup.table_width)
        table[index, : len(blocks)] = blocks
        if setup.window is not None and setup.past == "null":
            first_seen = max(int(seq_lens[index] - query_lens[index]) - setup.window + 1, 0)
            table[index, : first_seen // block_size] = NULL_BLOCK
    return table


def _written_before(setup: Setup, query_len: int, seq_len: int) -> int:
    """How many tokens of a sequence are in the cache before this step's write."""
    missing = {"new": query_len, "none": 0, "half": query_len - query_len // 2}
    return seq_len - missing[setup.slots]


def _fill(cache: KVCache, row: Row, flat: np.ndarray, part: slice) -> None:
    """Writes part of a sequence into the pool, by the oracle's own arithmetic."""
    value = None if cache.layout.is_latent else row.value[part]
    write_into(cache, row.key[part], value, flat[part])


def _scale(scale: float | tuple[float, ...] | None, spec: AttentionSpec) -> np.ndarray | None:
    if scale is None:
        return None
    if isinstance(scale, tuple):
        return np.resize(np.array(scale, np.float32), spec.num_kv_heads)
    return np.array(scale, np.float32)


def _padded_tokens(
    rows: tuple[Row, ...],
    part: str,
    setup: Setup,
    spec: AttentionSpec,
    dtype: str,
    rng: np.random.Generator,
) -> np.ndarray:
    heads = spec.num_heads if part == "query" else spec.num_kv_heads
    tokens = rng.normal(size=(setup.num_tokens, heads, spec.head_dim)).astype(storage_dtype(dtype))
    start = 0
    for row in rows:
        query_len = len(row.query)
        new = getattr(row, part)
        tokens[start : start + query_len] = new[len(new) - query_len :]
        start += query_len
    return tokens


def _distribution(query_lens: np.ndarray, seq_lens: np.ndarray) -> np.ndarray:
    """How many decodes lead, and how many prefills without history follow them."""
    is_decode = query_lens == 1
    decode_end = int(is_decode.argmin()) if not is_decode.all() else len(is_decode)
    is_prefill = (query_lens == seq_lens)[decode_end:]
    lead = int(is_prefill.argmin()) if not is_prefill.all() else len(is_prefill)
    return np.array([decode_end, decode_end + lead, len(query_lens)], np.int32)
