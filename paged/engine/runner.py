"""The device's side of the engine: parameters, caches and the compiled step."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int32

from paged.backends import Resolution
from paged.blocks import CopyOrders
from paged.engine.inputs import StepShape, resolve_tokens, samplers, unpack
from paged.engine.mover import BlockMover
from paged.engine.packer import Packer
from paged.engine.phases import Phases
from paged.engine.programs import Programs
from paged.engine.request import Request
from paged.engine.sampler import likeliest, logprobs_of, sample
from paged.engine.scheduler import Scheduled
from paged.layouts import KVCache
from paged.metadata import Buckets, MetadataBuilder
from paged.models import Decoder
from paged.models.paged_attention import PagedAttention


class Moment(NamedTuple):
    """A point in time, and how much had been spent on compilation by then, in seconds."""

    clock: float
    compile_seconds: float

    def until(self, later: "Moment") -> float:
        """Seconds between the two, compilation not counted."""
        return later.clock - self.clock - (later.compile_seconds - self.compile_seconds)


class InFlight:
    """A step that was dispatched and may still run.

    Attributes:
        parts: what ran, in the order of the rows.
        is_decode: whether all of it were decodes.
        num_tokens: tokens that ran, padding not counted.
        started: when it was handed over.
    """

    def __init__(
        self,
        parts: list[Scheduled],
        sampled: Int32[Array, " N"],
        candidates: tuple[Array, Array] | None,
        logprobs: Float[Array, " N"] | None,
        *,
        is_decode: bool,
        started: Moment,
    ) -> None:
        self.parts = parts
        self.is_decode = is_decode
        self.num_tokens = sum(part.count for part in parts)
        self.started = started
        self._sampled = sampled
        self._candidates = candidates
        self._logprobs = logprobs

    def sampled(self) -> list[tuple[Request, int, float | None]]:
        """Each request that has a new token, the token, and its log-probability where some request
        of the step wants it, once the step has run."""
        requests = samplers(self.parts)
        count = len(requests)
        tokens = np.asarray(self._sampled)[:count].tolist()
        logprobs = [None] * count
        if self._logprobs is not None:
            logprobs = np.asarray(self._logprobs)[:count].tolist()
        # A chunk that is not a prompt's last samples too, and means nothing by it.
        chunks = {part.request for part in self.parts if not part.is_last_chunk}
        each = zip(requests, tokens, logprobs, strict=True)
        return [found for found in each if found[0] not in chunks]

    def candidates(self) -> dict[Request, tuple[np.ndarray, np.ndarray]]:
        """For each beam the log-probabilities and ids of its likeliest next tokens."""
        if self._candidates is None:
            return {}
        logprobs, token_ids = (np.asarray(array) for array in self._candidates)
        return {
            part.request: (logprobs[row], token_ids[row])
            for row, part in enumerate(self.parts)
            if part.request.beams is not None and part.is_last_chunk
        }


class Runner:
    """Runs steps: one dispatch each, and nothing is read back before somebody asks.

    A step leaves on the device what each row sampled, and the next step reads it there. So it may
    be dispatched before the host knows those tokens.

    Args:
        model: its parameters are used as they are.
        resolutions: one per layer.
        num_blocks: blocks of each layer's cache, the null block included.
        block_size: tokens per block.
        max_num_seqs: rows of the block table.
        cache_dtype: storage type of the caches by name.
        num_host_blocks: blocks on the host to swap to.

    Attributes:
        phases: where spans of time are reported. While it records, each step is waited for.
    """

    def __init__(
        self,
        model: Decoder,
        resolutions: Sequence[Resolution],
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        cache_dtype: str,
        num_host_blocks: int = 0,
    ) -> None:
        self.phases = Phases()
        self._programs = Programs()
        self._resolutions = tuple(resolutions)
        self._block_size = block_size
        self._builder = MetadataBuilder(block_size)
        self._packer = Packer(self._builder)
        # Flat arrays: to take a tree of modules apart costs more at each call than a small step.
        self._graph, state = nnx.split(model)
        self._params, self._params_tree = jax.tree.flatten(state)
        self._caches: tuple[KVCache, ...] = tuple(
            resolution.allocate(num_blocks, block_size, dtype=cache_dtype)
            for resolution in resolutions
        )
        self._sampled = jnp.zeros(max_num_seqs, jnp.int32)
        self._jitted = jax.jit(self._step, static_argnums=0, donate_argnums=(2, 3))
        self._mover = BlockMover(
            self._caches, num_host_blocks=num_host_blocks, programs=self._programs
        )

    @property
    def buckets(self) -> Buckets:
        """What steps are padded to."""
        return self._builder.buckets

    @property
    def num_compiled_shapes(self) -> int:
        """Programs compiled so far."""
        return len(self._programs)

    @property
    def compile_seconds(self) -> float:
        """Time spent to trace, lower and compile."""
        return self._programs.seconds

    def copy(self, orders: CopyOrders) -> None:
        """Start the copies that come before the next step; call it before each, orders or not."""
        self._mover.settle()
        if len(orders):
            self._caches = self._mover.carry_out(self._caches, orders)

    def dispatch(
        self, step: Sequence[Scheduled], block_table: Int32[np.ndarray, "rows blocks"]
    ) -> InFlight:
        """Start a step and return at once.

        Args:
            step: at least one part.
            block_table: the blocks of every row; not kept.
        """
        with self.phases("metadata"):
            shape, packed, ordered = self._packer.pack(step, block_table)
        with self.phases("compile"):
            program = self.compile(shape)
        with self.phases("dispatch"):
            # Donated: the old caches are gone once the call returns, whether it succeeds or not.
            self._caches, self._sampled, *read = program(
                self._params, self._caches, self._sampled, packed
            )
        if self.phases.recording is not None:
            self.phases.recording.dispatches(shape)
            # Only so does the host's time not hide behind the device's.
            with self.phases("program"):
                read[0].block_until_ready()
        return InFlight(ordered, *read, is_decode=shape.is_decode, started=self.now())

    def preparations(
        self, shapes: Sequence[StepShape], *, max_copies: int
    ) -> list[Callable[[], Any]]:
        """Calls that compile steps of these shapes, and all that may come between steps."""
        steps = [partial(self.compile, shape) for shape in shapes]
        return [*steps, *self._mover.preparations(self._caches, max_copies=max_copies)]

    def now(self) -> Moment:
        """This moment, to measure steps by."""
        return Moment(time.perf_counter(), self.compile_seconds)

    def compile(self, shape: StepShape) -> Any:
        """The program for a shape, compiled when first asked for."""

        def lower() -> Any:
            packed = jax.ShapeDtypeStruct((shape.size,), jnp.int32)
            return self._jitted.lower(shape, self._params, self._caches, self._sampled, packed)

        return self._programs.get(shape, lower)

    def text(self, shape: StepShape) -> str:
        """The program for a shape, as the compiler left it."""
        return self.compile(shape).as_text()

    def _step(
        self,
        shape: StepShape,
        params: list[Array],
        caches: Sequence[KVCache],
        sampled: Int32[Array, " rows"],
        packed: Int32[Array, " size"],
    ) -> tuple[
        tuple[KVCache, ...],
        Int32[Array, " rows"],
        Int32[Array, " N"],
        tuple[Array, Array] | None,
        Float[Array, " N"] | None,
    ]:
        model = nnx.merge(self._graph, jax.tree.unflatten(self._params_tree, params))
        inputs = unpack(shape, packed, self._block_size)
        attention = PagedAttention(self._resolutions, caches, inputs.metadata)
        tokens = resolve_tokens(inputs.tokens, sampled)
        hidden = model(tokens, inputs.positions, attention)
        # Only a row's last token is asked for its successor: logits are the widest array there is.
        logits = model.logits(hidden[inputs.last_tokens])
        with jax.named_scope("sampling"):
            candidates = likeliest(logits, shape.num_candidates) if shape.num_candidates else None
            if inputs.logit_rows is not None:
                logits = logits[inputs.logit_rows]
            chosen = sample(logits, inputs.sampling, is_filtered=shape.mode == "filtered")
            logprobs = logprobs_of(logits, chosen) if shape.has_logprobs else None
        sampled = sampled.at[inputs.rows].set(chosen, mode="drop")
        return tuple(attention.caches), sampled, chosen, candidates, logprobs
