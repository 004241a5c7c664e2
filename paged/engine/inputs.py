"""A step's inputs as one array: a transfer costs the same for ten numbers as for ten thousand.

The compiled step takes the array apart again, by offsets that are static.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from paged.engine.request import Request
from paged.engine.sampler import RowSampling, SamplingMode
from paged.engine.sampling import SamplingParams
from paged.engine.scheduler import Scheduled
from paged.metadata import AttentionMetadata, MetadataBuilder

_MIN_CANDIDATES = 8


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
        num_samples: samples, padded (N), where a row has several; None where each has one.
        num_candidates: how many of each row's likeliest tokens are wanted, padded; 0 without beams.
        has_logprobs: whether the log-probabilities of the samples are wanted.
    """

    num_seqs: int
    num_tokens: int
    num_blocks: int
    is_decode: bool
    mode: SamplingMode
    num_samples: int | None = None
    num_candidates: int = 0
    has_logprobs: bool = False

    @property
    def fields(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """Shape and 32-bit type of each input, in the order in which they lie in the array."""
        seqs, tokens, samples = self.num_seqs, self.num_tokens, self.num_samples or self.num_seqs
        fields: dict[str, tuple[tuple[int, ...], type]] = {
            "tokens": ((tokens,), np.int32),
            "positions": ((tokens,), np.int32),
            "slot_mapping": ((tokens,), np.int32),
            "block_table": ((seqs, self.num_blocks), np.int32),
            "seq_lens": ((seqs,), np.int32),
            "query_start_loc": ((seqs + 1,), np.int32),
            "distribution": ((3,), np.int32),
            "last_tokens": ((seqs,), np.int32),
            "rows": ((samples,), np.int32),
        }
        if self.num_samples is not None:
            fields["logit_rows"] = ((samples,), np.int32)
        if self.mode != "greedy":
            fields |= {
                "temperature": ((samples,), np.float32),
                "top_p": ((samples,), np.float32),
                "top_k": ((samples,), np.int32),
                "seed": ((samples, 2), np.uint32),
                "output_index": ((samples,), np.int32),
            }
        return fields

    @property
    def size(self) -> int:
        """Numbers in the array."""
        return sum(math.prod(shape) for shape, _ in self.fields.values())

    def views(self, packed: Int32[np.ndarray, " size"]) -> dict[str, np.ndarray]:
        """Each input as it lies in the array, to be read and to be written."""
        found: dict[str, np.ndarray] = {}
        start = 0
        for name, (sizes, dtype) in self.fields.items():
            end = start + math.prod(sizes)
            found[name] = packed[start:end].view(dtype).reshape(sizes)
            start = end
        return found


class StepInputs(NamedTuple):
    """What the compiled step works on.

    Attributes:
        tokens: `[T]` int32, ids; -(row + 1) stands for the token last sampled in that row.
        positions: `[T]` int32.
        metadata: the contract.
        last_tokens: `[S]` int32, index of each row's last token.
        rows: `[N]` int32, the row that keeps each sampled token; past the end to drop it.
        logit_rows: `[N]` int32, which row's logits each sample is drawn from; None where sample i
            is row i's.
        sampling: of each sample; None where all are greedy.
    """

    tokens: Int32[Array, " T"]
    positions: Int32[Array, " T"]
    metadata: AttentionMetadata
    last_tokens: Int32[Array, " S"]
    rows: Int32[Array, " N"]
    logit_rows: Int32[Array, " N"] | None
    sampling: RowSampling | None


def samplers(ordered: Sequence[Scheduled]) -> list[Request]:
    """Whom each sample of a step is for: one for each part, in order, then their forks."""
    requests = [part.request for part in ordered]
    for part in ordered:
        requests += part.forks
    return requests


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
    requests = samplers(ordered)
    has_forks = len(requests) > len(ordered)
    num_samples = builder.buckets.seqs(len(requests)) if has_forks else metadata.num_seqs
    shape = StepShape(
        num_seqs=metadata.num_seqs,
        num_tokens=metadata.num_tokens,
        num_blocks=metadata.block_table.shape[1],
        is_decode=metadata.max_query_len == 1,
        mode=sampling_mode([part.request.params for part in step]),
        num_samples=num_samples if has_forks else None,
        num_candidates=_num_candidates(step),
        has_logprobs=any(part.request.params.best_of is not None for part in step),
    )
    kept = [part.row if part.is_last_chunk else num_rows for part in ordered]
    kept += [fork.row for fork in requests[len(ordered) :] if fork.row is not None]
    values: dict[str, Any] = {
        "tokens": token_ids(ordered, shape.num_tokens),
        "positions": built.positions,
        "slot_mapping": metadata.slot_mapping,
        "block_table": metadata.block_table,
        "seq_lens": metadata.seq_lens,
        "query_start_loc": metadata.query_start_loc,
        "distribution": metadata.distribution,
        "last_tokens": built.last_tokens,
        "rows": _padded(kept, num_samples, num_rows),
    }
    if has_forks:
        sources = [index for index, part in enumerate(ordered) for _ in part.forks]
        values["logit_rows"] = _padded([*range(len(ordered)), *sources], num_samples, 0)
    if shape.mode != "greedy":
        indices = [part.output_index for part in ordered]
        values |= _sampling_values(requests, indices, num_samples)
    return shape, _join(shape, values), ordered


def unpack(shape: StepShape, packed: Int32[Array, " size"], block_size: int) -> StepInputs:
    """The inputs inside the compiled step."""
    values: dict[str, Array] = {}
    start = 0
    for name, (sizes, dtype) in shape.fields.items():
        end = start + math.prod(sizes)
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
        values.get("logit_rows"),
        sampling,
    )


def resolve_tokens(
    tokens: Int32[Array, " T"], sampled: Int32[Array, " rows"]
) -> Int32[Array, " T"]:
    """Token ids, those that only the device knows filled in from what each row last sampled."""
    return jnp.where(tokens < 0, sampled[jnp.maximum(-tokens - 1, 0)], tokens)


def sampling_mode(params: Sequence[SamplingParams]) -> SamplingMode:
    """What a step of requests with these needs."""
    if any(each.is_filtered for each in params):
        return "filtered"
    return "greedy" if all(each.is_greedy for each in params) else "plain"


def _num_candidates(step: Sequence[Scheduled]) -> int:
    """The most that a beam wants, padded: one program serves several widths."""
    most = max(
        (
            part.request.beams.num_candidates
            for part in step
            if part.request.beams is not None and part.is_last_chunk
        ),
        default=0,
    )
    return max(_MIN_CANDIDATES, 1 << (most - 1).bit_length()) if most else 0


def token_ids(ordered: Sequence[Scheduled], num_tokens: int) -> Int32[np.ndarray, " T"]:
    """Ids of the tokens that run, padded; -(row + 1) for one that only the device knows."""
    tokens: list[int] = []
    for part in ordered:
        known = part.request.known_tokens(part.start, part.count)
        # At most the last one is missing: a step samples one token of a request.
        tokens += known if len(known) == part.count else [*known, -(part.row + 1)]
    return _padded(tokens, num_tokens, 0)


def _sampling_values(
    requests: Sequence[Request], output_indices: Sequence[int], num_samples: int
) -> dict[str, np.ndarray]:
    params = [request.params for request in requests]
    seeds = np.zeros((num_samples, 2), np.uint32)
    seeds[: len(requests)] = [divmod(request.seed, 2**32) for request in requests]
    return {
        "temperature": _padded([p.temperature for p in params], num_samples, 0, np.float32),
        "top_p": _padded([p.top_p for p in params], num_samples, 1, np.float32),
        "top_k": _padded([p.top_k for p in params], num_samples, 0),
        "seed": seeds,
        # Forks sample their first token: index 0, as padding has it.
        "output_index": _padded(output_indices, num_samples, 0),
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
