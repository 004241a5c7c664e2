"""`AttentionMetadata`: the contract between a scheduler and an attention kernel.

The names S (sequences, padded), T (tokens scheduled this step, padded) and B (blocks per
sequence, padded) run through the whole package. What each field must hold is checked in
`paged.validation`; docs/contract.md states the rules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from paged.spec import AttentionSpec

NULL_BLOCK = 0
"""Never allocated and never written; padding may point at it."""

NO_SLOT = -1
"""The slot of a token whose keys and values are not written."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(
        "block_table",
        "slot_mapping",
        "seq_lens",
        "query_start_loc",
        "distribution",
    ),
    meta_fields=("max_query_len", "max_seq_len"),
)
@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Which tokens of which sequences meet which blocks in one step.

    The arrays may be numpy, JAX or torch. The query of a sequence is the *last* query_len tokens
    of it: query i stands at position seq_len - query_len + i and sees the keys up to its own.

    Attributes:
        block_table: `[S, B]` int32, the physical block of each logical block. Entries past a
            sequence's last block are never followed and may hold anything; padding rows hold 0.
        slot_mapping: `[T]` int32, slot = block * block_size + offset of each new token; -1
            writes nothing.
        seq_lens: `[S]` int32, tokens in the cache once this step's are written; 0 in padding.
        query_start_loc: `[S + 1]` int32, prefix sums of the query lengths; padding repeats the
            last value.
        distribution: `[3]` int32, (decode_end, prefill_end, num_seqs): sequences up to
            decode_end have one query token, those up to prefill_end have no history
            (query_len == seq_len), the rest up to num_seqs are of any kind but one token.
        max_query_len: static upper bound of the query lengths.
        max_seq_len: static upper bound of the sequence lengths.
    """

    block_table: Int[Any, "S B"]
    slot_mapping: Int[Any, " T"]
    seq_lens: Int[Any, " S"]
    query_start_loc: Int[Any, " S+1"]
    distribution: Int[Any, " 3"]
    max_query_len: int = field(metadata={"static": True})
    max_seq_len: int = field(metadata={"static": True})

    @property
    def num_seqs(self) -> int:
        """Rows of the block table, padding included (S)."""
        return self.block_table.shape[0]

    @property
    def num_tokens(self) -> int:
        """Token rows, padding included (T)."""
        return self.slot_mapping.shape[0]

    def map(self, function: Callable[[Any], Any]) -> "AttentionMetadata":
        """The same metadata with a function applied to each array, `jnp.asarray` for example."""
        arrays = {
            f.name: function(getattr(self, f.name))
            for f in fields(self)
            if not f.metadata.get("static")
        }
        return replace(self, **arrays)

    def static_validate(
        self, *, query: Any = None, cache: Any = None, spec: AttentionSpec | None = None
    ) -> None:
        """Checks shapes and dtypes alone, so that it may run while JAX traces.

        Args:
            query: `[T, num_heads, head_dim]`, checked where given.
            cache: the `KVCache` that will be read, checked where given.
            spec: checked against `query` and `cache` where given.

        Raises:
            ValueError: naming the field, what it is and what was expected.
        """
        from paged.validation import check_static

        check_static(self, query=query, cache=cache, spec=spec)

    def validate(
        self,
        *,
        block_size: int | None = None,
        num_blocks: int | None = None,
        query: Any = None,
        cache: Any = None,
        spec: AttentionSpec | None = None,
    ) -> None:
        """Checks every rule of the contract on concrete values.

        Args:
            block_size: tokens per block; taken from `cache` where that is given. Without either,
                the rules that need it (blocks owned, slots) are not checked.
            num_blocks: blocks in the pool; likewise.
            query: as for `static_validate`.
            cache: as for `static_validate`.
            spec: as for `static_validate`.

        Raises:
            ValueError: naming the field, the index and the two numbers that disagree.
        """
        from paged.validation import check_values

        self.static_validate(query=query, cache=cache, spec=spec)
        if cache is not None:
            block_size = cache.block_size if block_size is None else block_size
            num_blocks = cache.num_blocks if num_blocks is None else num_blocks
        for name, size in (("block_size", block_size), ("num_blocks", num_blocks)):
            if size is not None:
                _require_positive(name, size)
        check_values(
            self,
            block_size=block_size,
            num_blocks=num_blocks,
            window=None if spec is None else spec.window,
            knows_window=spec is not None,
        )

    def with_kernel_blocks(self, ratio: int) -> "AttentionMetadata":
        """The same step for a kernel whose blocks are `ratio` times smaller than the manager's.

        Manager block b is kernel blocks b * ratio .. b * ratio + ratio - 1, and slots keep their
        numbers. Entries past the end of a sequence stay past the end.
        """
        _require_positive("ratio", ratio)
        table = self.block_table
        spread = [table * ratio + part for part in range(ratio)]
        if isinstance(table, np.ndarray):
            expanded = np.stack(spread, axis=-1)
        elif isinstance(table, jax.Array):
            expanded = jax.numpy.stack(spread, axis=-1)
        else:
            import torch

            expanded = torch.stack(spread, dim=-1)
        return replace(self, block_table=expanded.reshape(table.shape[0], -1))


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes to which a step is padded, so that few shapes are compiled.

    A compiled program serves one (S, T, B, max_query_len) only. Powers of two waste at most half
    of the rows; the floors keep small steps in one shape. Blocks per sequence grow by fours:
    a kernel follows only the entries that a sequence owns, so that padding there costs four
    bytes an entry and no arithmetic. T of a decode step is S, and its max_query_len is 1.

    The longest query grows by fours too: it bounds tiles, and nothing is padded to it.

    With 64 sequences, 512 tokens a step and 2,048 tokens a sequence in blocks of 16 that makes
    4 decode shapes and at most 52 others for each of the 3 values of B.

    Attributes:
        min_seqs: smallest S.
        min_tokens: smallest T of a step that is not all decodes.
        min_blocks: smallest B.

    Raises:
        ValueError: a size below 1.
    """

    min_seqs: int = 8
    min_tokens: int = 16
    min_blocks: int = 16

    def __post_init__(self) -> None:
        for each in fields(self):
            _require_positive(each.name, getattr(self, each.name))

    def seqs(self, count: int) -> int:
        """S for this many sequences."""
        return _power_at_least(count, self.min_seqs, 2)

    def tokens(self, count: int) -> int:
        """T for this many tokens."""
        return _power_at_least(count, self.min_tokens, 2)

    def query_len(self, count: int) -> int:
        """max_query_len of a step that is not all decodes, for this longest query."""
        return _power_at_least(count, self.min_tokens, 4)

    def blocks(self, count: int) -> int:
        """B for this many blocks per sequence."""
        return _power_at_least(count, self.min_blocks, 4)


def _require_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}: got {value!r}, expected an integer of at least 1")


def _power_at_least(count: int, floor: int, factor: int) -> int:
    size = floor
    while size < count:
        size *= factor
    return size


@dataclass(frozen=True, slots=True)
class Step:
    """One step, ready for a model: what to run and which of the caller's requests each row is.

    Attributes:
        metadata: the contract, decode first, padded.
        order: `[num_requests]` int64; row s of the metadata is entry order[s] of the list that
            was asked for.
        positions: `[T]` int32, each token's position in its sequence; 0 in padding.
        token_rows: `[T]` int32, the caller's table row of each token; -1 in padding.
        last_tokens: `[S]` int32, index of each sequence's last query token; 0 in padding.
    """

    metadata: AttentionMetadata
    order: Int[np.ndarray, " requests"]
    positions: Int[np.ndarray, " T"]
    token_rows: Int[np.ndarray, " T"]
    last_tokens: Int[np.ndarray, " S"]


class MetadataBuilder:
    """Turns a step's list of (table row, query length) into an `AttentionMetadata`.

    It takes plain arrays and knows no block manager.

    Args:
        block_size: tokens per block, the same as in the cache. The metadata does not hold it:
            `AttentionMetadata.validate(cache=...)` tells where the two differ.
        buckets: sizes to pad to.
    """

    def __init__(self, block_size: int, *, buckets: Buckets | None = None) -> None:
        _require_positive("block_size", block_size)
        self.block_size = int(block_size)
        self.buckets = buckets or Buckets()

    def build(
        self,
        requests: Sequence[tuple[int, int]],
        *,
        block_table: Int[np.ndarray, "rows blocks"],
        num_computed: Int[np.ndarray, " rows"],
    ) -> Step:
        """One step.

        Args:
            requests: (table row, query length) of each scheduled request, in any order.
            block_table: physical blocks of each row, any integer type. Only the blocks that a
                row owns are looked at; those written this step are not the null block.
            num_computed: tokens of each row that are in the cache before this step.

        Returns:
            The step as numpy arrays, decodes first, then prefills without history, then the rest;
            within each kind in the order asked.

        Raises:
            ValueError: no request, one that is no pair, a query length below 1, a row out of
                range or named twice, arrays that are not of integers, a row with fewer than 0
                tokens or whose table is too short for its tokens, a sequence or a slot that does
                not fit int32, or a write to the null block.
        """
        block_table = _integers("block_table", block_table, 2)
        num_computed = _integers("num_computed", num_computed, 1)
        rows, query_lens, computed = self._checked(requests, block_table, num_computed)
        kind = np.where(query_lens == 1, 0, np.where(computed == 0, 1, 2))
        order = np.argsort(kind, kind="stable")
        rows, query_lens, kind = rows[order], query_lens[order], kind[order]
        seq_lens = (computed[order] + query_lens).astype(np.int32)

        count, total = len(rows), int(query_lens.sum())
        all_decode = bool((query_lens == 1).all())
        num_seqs = self.buckets.seqs(count)
        num_tokens = num_seqs if all_decode else self.buckets.tokens(total)
        needed = -(-int(seq_lens.max()) // self.block_size)
        num_blocks = self.buckets.blocks(needed)
        max_query_len = 1 if all_decode else self.buckets.query_len(int(query_lens.max()))

        starts = np.zeros(num_seqs + 1, np.int32)
        starts[1 : count + 1] = np.cumsum(query_lens)
        starts[count + 1 :] = total
        sequence_of = np.repeat(np.arange(count), query_lens)
        offset = np.arange(total) - starts[sequence_of]
        position = (seq_lens - query_lens)[sequence_of] + offset

        table = np.full((num_seqs, num_blocks), NULL_BLOCK, np.int32)
        width = min(num_blocks, block_table.shape[1])
        owned = block_table[rows, :needed]
        self._check_owned(owned, rows, seq_lens)
        table[:count, :width] = block_table[rows, :width]
        slots = np.full(num_tokens, NO_SLOT, np.int32)
        logical, within = np.divmod(position, self.block_size)
        written = table[sequence_of, logical]
        if written.min() <= NULL_BLOCK:
            token = int(written.argmin())
            raise ValueError(
                f"block_table[{rows[sequence_of[token]]}, {logical[token]}]: got block "
                f"{written[token]}, expected at least 1: this step writes position "
                f"{position[token]}, and the null block is never written"
            )
        slots[:total] = written * self.block_size + within

        metadata = AttentionMetadata(
            block_table=table,
            slot_mapping=slots,
            seq_lens=_padded(seq_lens, num_seqs, 0),
            query_start_loc=starts,
            distribution=np.array(
                [np.count_nonzero(kind == 0), np.count_nonzero(kind <= 1), count], np.int32
            ),
            max_query_len=max_query_len,
            max_seq_len=num_blocks * self.block_size,
        )
        return Step(
            metadata=metadata,
            order=order,
            positions=_padded(position, num_tokens, 0),
            token_rows=_padded(rows[sequence_of], num_tokens, -1),
            last_tokens=_padded(starts[1 : count + 1] - 1, num_seqs, 0),
        )

    def _checked(
        self,
        requests: Sequence[tuple[int, int]],
        block_table: Int[np.ndarray, "rows blocks"],
        num_computed: Int[np.ndarray, " rows"],
    ) -> tuple[
        Int[np.ndarray, " requests"], Int[np.ndarray, " requests"], Int[np.ndarray, " requests"]
    ]:
        """Rows, query lengths and cached tokens of the requests."""
        rows, query_lens = _pairs(requests)
        limit = min(block_table.shape[0], num_computed.shape[0])
        if rows.min() < 0 or rows.max() >= limit:
            index = int(((rows < 0) | (rows >= limit)).argmax())
            raise ValueError(
                f"requests[{index}]: got row {rows[index]}, expected 0 <= row < {limit}"
            )
        if len(set(rows.tolist())) < len(rows):
            firsts = np.unique(rows, return_index=True)[1]
            index = int(np.setdiff1d(np.arange(len(rows)), firsts)[0])
            raise ValueError(f"requests[{index}]: row {rows[index]} is named twice in one step")
        if query_lens.min() < 1:
            index = int((query_lens < 1).argmax())
            raise ValueError(
                f"requests[{index}]: got query length {query_lens[index]}, expected at least 1"
            )
        computed = num_computed[rows].astype(np.int64)
        if computed.min() < 0:
            row = rows[(computed < 0).argmax()]
            raise ValueError(
                f"num_computed[{row}]: got {num_computed[row]}, expected 0 <= tokens < {2**31}"
            )
        capacity = block_table.shape[1] * self.block_size
        is_wrong = computed > min(capacity, 2**31 - 1) - query_lens
        if is_wrong.any():
            index = int(is_wrong.argmax())
            tokens = int(computed[index]) + int(query_lens[index])
            raise ValueError(
                f"requests[{index}]: row {rows[index]} has {tokens} tokens after this step, its "
                f"table has room for {capacity}"
                if tokens > capacity
                else f"requests[{index}]: row {rows[index]} has {tokens} tokens after this step, "
                f"expected fewer than {2**31} so that a sequence length fits int32"
            )
        return rows, query_lens, computed

    def _check_owned(
        self,
        blocks: Int[np.ndarray, "requests needed"],
        rows: Int[np.ndarray, " requests"],
        seq_lens: Int[np.ndarray, " requests"],
    ) -> None:
        limit = 2**31 // self.block_size
        if blocks.min() >= 0 and blocks.max() < limit:
            return
        # Entries past the end of a sequence may hold anything.
        counts = -(-seq_lens.astype(np.int64) // self.block_size)
        is_owned = np.arange(blocks.shape[1]) < counts[:, None]
        wrong = np.argwhere(is_owned & ((blocks < 0) | (blocks >= limit)))
        if len(wrong):
            request, column = wrong[0].tolist()
            raise ValueError(
                f"block_table[{rows[request]}, {column}]: got block {blocks[request, column]}, "
                f"expected 0 <= block < {limit} so that a slot fits int32"
            )


def _pairs(
    requests: Sequence[tuple[int, int]],
) -> tuple[Int[np.ndarray, " requests"], Int[np.ndarray, " requests"]]:
    """Rows and query lengths, each an array."""
    if not len(requests):
        raise ValueError("requests: got none, expected at least one (row, query length)")
    try:
        pairs = np.asarray(requests)
    except (ValueError, OverflowError):
        pairs = None
    if pairs is None or pairs.dtype.kind not in "iu" or pairs.shape != (len(requests), 2):
        for index, request in enumerate(requests):
            if not _is_pair(request):
                raise ValueError(
                    f"requests[{index}]: got {request!r}, expected a pair of integers "
                    "(row, query length)"
                )
        raise ValueError("requests: got integers beyond int64, expected rows and query lengths")
    rows, query_lens = pairs.astype(np.int64).T
    return rows, query_lens


def _is_pair(request: Any) -> bool:
    try:
        values = tuple(request)
    except TypeError:
        return False
    return len(values) == 2 and all(
        isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values
    )


def _integers(name: str, values: Any, rank: int) -> np.ndarray:
    """The values as a numpy array of integers of this rank."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{name}: got rows that are no array, expected integers of {rank} dimension(s)"
        ) from None
    if array.ndim != rank or array.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: got {array.dtype}{array.shape}, expected integers of {rank} dimension(s)"
        )
    return array


def _padded(values: np.ndarray, length: int, fill: int) -> np.ndarray:
    padded = np.full(length, fill, np.int32)
    padded[: len(values)] = values
    return padded
