"""A step's inputs as one array: a transfer costs the same for ten numbers as for ten thousand.

The compiled step takes the array apart again, by offsets that are static.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from paged.engine.sampler import RowSampling, SamplingMode
from paged.engine.scheduler import Scheduled
from paged.metadata import AttentionMetadata, MetadataBuilder


@dataclass(frozen=True, slots=True)
class StepShape:
    """All that is static about a step; one program is compiled for each.

    The queries' bound is not among it: a step is all decodes, or its bound is `num_tokens`, which
    a kernel may take as "long" and which keeps programs few.

    Attributes:
        num_seqs: rows, padded (S).
        num_tokens: tokens, padded (T).
        num_blocks: blocks of the longest row, padded (B).
        is_decode: whether every row has one token.
        mode: what sampling needs.
    """

    num_seqs: int
    num_tokens: int
    num_blocks: int
    is_decode: bool
    mode: SamplingMode

    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """Shape and 32-bit type of each input, in the order in which they lie in the array."""
        seqs, tokens = self.num_seqs, self.num_tokens
        fields: dict[str, tuple[tuple[int, ...], type]] = {
            "tokens": ((tokens,), np.int32),
            "positions": ((tokens,), np.int32),
            "slot_mapping": ((tokens,), np.int32),
            "block_table": ((seqs, self.num_blocks), np.int32),
            "seq_lens": ((seqs,), np.int32),
            "query_start_loc": ((seqs + 1,), np.int32),
            "distribution": ((3,), np.int32),
            "last_tokens": ((seqs,), np.int32),
            "rows": ((seqs,), np.int32),
        }
        if self.mode != "greedy":
            fields |= {
                "temperature": ((seqs,), np.float32),
                "top_p": ((seqs,), np.float32),
                "top_k": ((seqs,), np.int32),
                "seed": ((seqs, 2), np.uint32),
                "output_index": ((seqs,), np.int32),
            }
        return fields

    @property
    def size(self) -> int:
        """Numbers in the array."""
        return sum(int(np.prod(shape)) for shape, _ in self.fields.values())


class StepInputs(NamedTuple):
    """What the compiled step works on.

    Attributes:
        tokens: `[T]` int32, ids; -(row + 1) stands for the token last sampled in that row.
        positions: `[T]` int32.
        metadata: the contract.
        last_tokens: `[S]` int32, index of each row's last token.
        rows: `[S]` int32, where each row's sampled token is kept; past the end to drop it.
        sampling: None where all rows are greedy.
    """

    tokens: Int32[Array, " T"]
    positions: Int32[Array, " T"]
    metadata: AttentionMetadata
    last_tokens: Int32[Array, " S"]
    rows: Int32[Array, " S"]
    sampling: RowSampling | None


def pack(
    step: Sequence[Scheduled],
    *,
    builder: MetadataBuilder,
    block_table: Int32[np.ndarray, "rows blocks"],
) -> tuple[StepShape, Int32[np.ndarray, " size"], list[Scheduled]]:
    """A step's shape, its inputs in one array, and its parts in the order of the rows.

    Args:
        step: at least one part.
        builder: turns it into the contract.
        block_table: the blocks of every row.
    """
    num_rows = block_table.shape[0]
    num_computed = np.zeros(num_rows, np.int64)
    num_computed[[part.row for part in step]] = [part.start for part in step]
    built = builder.build(
        [(part.row, part.count) for part in step],
        block_table=block_table,
        num_computed=num_computed,
    )
    ordered = [step[index] for index in built.order.tolist()]
    metadata = built.metadata
    shape = StepShape(
        num_seqs=metadata.num_seqs,
        num_tokens=metadata.num_tokens,
        num_blocks=metadata.block_table.shape[1],
        is_decode=metadata.max_query_len == 1,
        mode=_mode(step),
    )
    values: dict[str, Any] = {
        "tokens": _token_ids(ordered, shape.num_tokens),
        "positions": built.positions,
        "slot_mapping": metadata.slot_mapping,
        "block_table": metadata.block_table,
        "seq_lens": metadata.seq_lens,
        "query_start_loc": metadata.query_start_loc,
        "distribution": metadata.distribution,
        "last_tokens": built.last_tokens,
        "rows": _padded(
            [part.row if part.is_last_chunk else num_rows for part in ordered],
            shape.num_seqs,
            num_rows,
        ),
    }
    if shape.mode != "greedy":
        values |= _sampling_values(ordered, shape.num_seqs)
    return shape, _join(shape, values), ordered


def unpack(shape: StepShape, packed: Int32[Array, " size"], block_size: int) -> StepInputs:
    """The inputs inside the compiled step."""
    values: dict[str, Array] = {}
    start = 0
    for name, (sizes, dtype) in shape.fields.items():
        end = start + int(np.prod(sizes))
        values[name] = jax.lax.bitcast_convert_type(packed[start:end], dtype).reshape(sizes)
        start = end
    metadata = AttentionMetadata(
        block_table=values["block_table"],
        slot_mapping=values["slot_mapping"],
        seq_lens=values["seq_lens"],
        query_start_loc=values["query_start_loc"],
        distribution=values["distribution"],
        max_query_len=1 if shape.is_decode else shape.num_tokens,
        max_seq_len=shape.num_blocks * block_size,
    )
    sampling = (
        None
        if shape.mode == "greedy"
        else RowSampling(**{name: values[name] for name in RowSampling._fields})
    )
    return StepInputs(
        values["tokens"],
        values["positions"],
        metadata,
        values["last_tokens"],
        values["rows"],
        sampling,
    )


def resolve_tokens(
    tokens: Int32[Array, " T"], sampled: Int32[Array, " rows"]
) -> Int32[Array, " T"]:
    """Token ids, those that only the device knows filled in from what each row last sampled."""
    return jnp.where(tokens < 0, sampled[jnp.maximum(-tokens - 1, 0)], tokens)


def _mode(step: Sequence[Scheduled]) -> SamplingMode:
    if any(part.request.params.is_filtered for part in step):
        return "filtered"
    return "greedy" if all(part.request.params.is_greedy for part in step) else "plain"


def _token_ids(ordered: Sequence[Scheduled], num_tokens: int) -> Int32[np.ndarray, " T"]:
    tokens: list[int] = []
    for part in ordered:
        known = part.request.known_tokens(part.start, part.count)
        # At most the last one is missing: a step samples one token of a request.
        tokens += known if len(known) == part.count else [*known, -(part.row + 1)]
    return _padded(tokens, num_tokens, 0)


def _sampling_values(ordered: Sequence[Scheduled], num_seqs: int) -> dict[str, np.ndarray]:
    params = [part.request.params for part in ordered]
    seeds = np.zeros((num_seqs, 2), np.uint32)
    seeds[: len(ordered)] = [divmod(part.request.seed, 2**32) for part in ordered]
    return {
        "temperature": _padded([p.temperature for p in params], num_seqs, 0, np.float32),
        "top_p": _padded([p.top_p for p in params], num_seqs, 1, np.float32),
        "top_k": _padded([p.top_k for p in params], num_seqs, 0),
        "seed": seeds,
        "output_index": _padded([part.output_index for part in ordered], num_seqs, 0),
    }


def _padded(values: Sequence[float], length: int, fill: float, dtype: type = np.int32) -> Any:
    padded = np.full(length, fill, dtype)
    padded[: len(values)] = values
    return padded


def _join(shape: StepShape, values: dict[str, np.ndarray]) -> Int32[np.ndarray, " size"]:
    pieces = []
    for name, (sizes, dtype) in shape.fields.items():
        value = values[name]
        assert (value.shape, value.dtype) == (sizes, dtype), name
        pieces.append(value.reshape(-1).view(np.int32))
    return np.concatenate(pieces)
