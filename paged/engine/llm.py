"""`LLM`: text in, text out, over a paged cache."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from paged.backends import Backend
from paged.blocks import BlockTable, KVCacheManager
from paged.dtypes import dtype_name
from paged.engine.beams import BeamSearch, Hypothesis
from paged.engine.capacity import block_bytes, default_num_blocks
from paged.engine.engine import Engine
from paged.engine.generation import Generation, best
from paged.engine.loading import load
from paged.engine.outputs import Completion, Increment, RequestOutput
from paged.engine.phases import Recording
from paged.engine.preemption import PreemptionCost, PreemptionMode
from paged.engine.program_parts import shares, traced
from paged.engine.progress import RunProgress, tracked
from paged.engine.prompts import Prompt, as_list, one_each, prompt_token_ids
from paged.engine.resolving import resolve_layers
from paged.engine.runner import Runner
from paged.engine.sampling import MAX_SEED, SamplingParams, require_integer
from paged.engine.stats import EngineStats
from paged.engine.text import Detokenizer
from paged.layouts import Layout
from paged.models import Decoder, Tokenizer

# No length to this power passes what a float holds.
_MAX_PENALTY = 10


class LLM:
    """A model with a paged cache, ready to generate.

        llm = LLM("tiny-gqa", layout="pallas")
        outputs = llm.generate(["First Citizen:"], SamplingParams(temperature=0, max_tokens=32))

    Args:
        model: a built-in name, a Hugging Face folder, or a model: any `Decoder`.
        tokenizer: needed for prompts that are strings, for text and for stop strings; taken from
            the model's folder by default.
        layout: how blocks lie in memory, by name or a `Layout`; "auto" is the backend's choice.
        backend: the attention kernel, by name or a `Backend`, which must serve every layer;
            "auto" is for each layer the first that serves it.
        block_size: tokens per block.
        num_blocks: blocks of each layer's cache, the null block included; by default enough for
            all rows at full length, within a budget of 1 GiB.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens of one step; longer prompts run in chunks.
        max_model_len: prompt and generated tokens of one request; the model's own limit by
            default.
        dtype: of parameters and cache. By default what the model has; but float32 for a folder in
            16 bits on a CPU that is no faster in those, which the log says.
        enable_prefix_caching: whether requests share the blocks of the tokens that they have in
            common, and later ones find those of earlier ones as long as they last.
        num_host_blocks: blocks on the host for requests that lose theirs; 0 computes again.
        preemption: what to do with such requests: "swap" moves their blocks to the host while it
            has room, "recompute" computes their tokens again, "auto" is what costs less.
        seed: of the requests that bring none; None for other tokens each time.

    Attributes:
        model: the `Decoder`.
        tokenizer: None where there is none.
        resolutions: the backend and layout that serve each layer.

    Raises:
        ValueError: an argument out of range or an unknown name, naming it and what is accepted.
        UnsupportedError: no backend serves what a layer asks for, with the reasons of each and the
            layers that ask.
    """

    def __init__(
        self,
        model: str | Path | Decoder,
        *,
        tokenizer: Tokenizer | None = None,
        layout: str | Layout = "auto",
        backend: str | Backend = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        dtype: DTypeLike | None = None,
        enable_prefix_caching: bool = True,
        num_host_blocks: int = 0,
        preemption: PreemptionMode = "auto",
        seed: int | None = None,
    ) -> None:
        for name, value, least in (
            ("block_size", block_size, 1),
            ("num_blocks", num_blocks, 2),
            ("max_num_seqs", max_num_seqs, 1),
            ("max_num_batched_tokens", max_num_batched_tokens, 1),
            ("max_model_len", max_model_len, 2),
            ("num_host_blocks", num_host_blocks, 0),
        ):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name}: got {value!r}, expected an integer of at least {least}")
        if seed is not None:
            require_integer("seed", seed, 0, MAX_SEED)
        self.model, self.tokenizer = load(model, tokenizer, dtype)
        config = self.model.config
        storage = dtype_name(self.model.dtype)
        self.resolutions = resolve_layers(
            self.model.attention_specs,
            layout=layout,
            backend=backend,
            block_size=block_size,
            dtype=storage,
        )
        max_model_len = max_model_len or config.max_position_embeddings
        if num_blocks is None:
            num_blocks = default_num_blocks(
                self.resolutions,
                block_size=block_size,
                dtype=storage,
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
            )
        manager = KVCacheManager(
            num_blocks,
            block_size,
            prefix_caching=enable_prefix_caching,
            host_blocks=num_host_blocks,
        )
        # No request can be longer than the pool, so no row of the table needs to be.
        blocks_per_row = min(-(-max_model_len // block_size), num_blocks - 1)
        table = BlockTable(max_num_seqs, blocks_per_row, block_size, device_put=np.asarray)
        self._runner = runner = Runner(
            self.model,
            self.resolutions,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            cache_dtype=storage,
            num_host_blocks=num_host_blocks,
        )
        parameters = jax.tree.leaves(nnx.state(self.model))
        cost = PreemptionCost(
            block_bytes=block_bytes(self.resolutions, block_size=block_size, dtype=storage),
            flops_per_token=2.0 * sum(parameter.size for parameter in parameters),
            platform=self.resolutions[0].target,
            mode=preemption,
        )
        eos = {*config.eos_token_ids, *(self.tokenizer.eos_token_ids if self.tokenizer else ())}
        self._engine = Engine(
            runner,
            manager,
            table,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            eos_token_ids=eos,
            cost=cost,
            seed=seed,
        )
        self._generations: dict[int, Generation] = {}

    @property
    def stats(self) -> EngineStats:
        """Counts and times since this object was made."""
        return self._engine.stats

    def warm_up(
        self,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> int:
        """Compile all that requests may need, so that no step has to wait for it.

        A program is compiled for each shape that a step may have: tens of them for each way to
        sample. `max_num_seqs`, `max_num_batched_tokens` and `max_model_len` bound them.
        Beam searches still compile their own.

        Args:
            params: of the requests that will come, one of each kind: greedy, drawn, drawn with
                filters, several samples.
            progress: a bar on stderr: True for one, False for none, None on a terminal.

        Returns:
            The number of programs that were not there before.

        Raises:
            ValueError: no `SamplingParams`, or more samples than there are rows.
        """
        given: Any = SamplingParams() if params is None else params
        kinds: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
        for index, kind in enumerate(kinds):
            if not isinstance(kind, SamplingParams):
                raise ValueError(f"params[{index}]: got {kind!r}, expected SamplingParams")
            self._engine.scheduler.require_room(kind, 1, 1)
        before = self._runner.num_compiled_shapes
        for prepare in tracked(self._engine.preparations(kinds), "programs", progress):
            prepare()
        return self._runner.num_compiled_shapes - before

    def profiled(self) -> AbstractContextManager[Recording]:
        """Records where the time of the steps within a `with` goes.

        Meanwhile each step is waited for before the next is planned, so that the phases add up;
        else the host plans behind the device's back.

        Returns:
            What gives the `Recording`; its `profiles()`, by kind of step, are there after the
            `with`.
        """
        return self._runner.phases.recorded()

    def program_shares(self, call: Callable[[], object]) -> dict[str, float] | None:
        """How the program that runs most often within a call shares out its time.

        Args:
            call: which generates; its programs were compiled before.

        Returns:
            The shares of attention, sampling and the model's own arithmetic; None where JAX does
            not trace them.
        """
        with self.profiled() as recording:
            operations = traced(call)
        shape = recording.commonest
        return None if shape is None else shares(operations, self._runner.text(shape))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | Sequence[str | None] | None = None,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Generate for all prompts, batched as they fit.

        Args:
            prompts: one prompt or a list of them, each a string or token ids.
            params: one for all, or one for each; the defaults of `SamplingParams` without.
            priority: one for all, or one for each; lower is served earlier. Each step of it counts
                as `ARRIVALS_PER_PRIORITY` later arrivals, so that nobody waits for ever.
            cache_salt: one for all, or one for each; only requests with the same one share cached
                blocks.
            progress: whether to show a bar; None shows one on a terminal when it takes long.

        Returns:
            One output for each prompt, in their order.

        Raises:
            ValueError: a prompt or its parameters that cannot be served, by its place in the list.
                Nothing has run then.
        """
        generations = self._submit(prompts, params, priority, cache_salt, is_streamed=False)
        with RunProgress(len(generations), progress) as bar:
            for increment in self._run(generations):
                finished = int(increment.finish_reason is not None)
                bar.advance(tokens=len(increment.token_ids), finished=finished)
        return _outputs(generations)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        cache_salt: str | Sequence[str | None] | None = None,
    ) -> Iterator[Increment]:
        """As `generate`, but what each step adds comes as it is known.

        The texts of a prompt's increments add up to what `generate` gives. Requests are checked and
        queued when the first increment is asked for; closing the iterator gives them up. Several
        streams may run side by side. `best_of` is refused: which samples are the best is known at
        their end.
        """
        yield from self._run(self._submit(prompts, params, priority, cache_salt, is_streamed=True))

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        beam_width: int,
        max_tokens: int = 128,
        length_penalty: float = 1.0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """The likeliest continuations of each prompt, as far as a beam search finds them.

        Nothing is random. `BeamSearch` says what it looks for; the model's own end tokens end a
        continuation.

        Args:
            prompts: one prompt or a list of them, each a string or token ids.
            beam_width: continuations that are followed at once, and the most that are returned.
            max_tokens: most tokens to generate.
            length_penalty: a continuation's score is its log-probability divided by its length in
                tokens to this power.
            cache_salt: only requests with the same one share cached blocks.

        Returns:
            One output for each prompt, in their order; its samples are the beams, the best first.

        Raises:
            ValueError: an argument or a prompt that cannot be served. Nothing has run then.
        """
        for name, value in (("beam_width", beam_width), ("max_tokens", max_tokens)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}: got {value!r}, expected an integer of at least 1")
        is_number = isinstance(length_penalty, int | float) and not isinstance(length_penalty, bool)
        if not is_number or not -_MAX_PENALTY <= length_penalty <= _MAX_PENALTY:
            raise ValueError(
                f"length_penalty: got {length_penalty!r}, expected a number from "
                f"{-_MAX_PENALTY} to {_MAX_PENALTY}"
            )
        listed = as_list(prompts)
        searches: list[BeamSearch] = []
        tokens: list[list[int]] = []
        try:
            for index, prompt in enumerate(listed):
                try:
                    tokens.append(self._token_ids(prompt))
                    searches.append(
                        self._engine.add_search(
                            tokens[-1],
                            beam_width=beam_width,
                            max_tokens=max_tokens,
                            length_penalty=length_penalty,
                            cache_salt=cache_salt,
                        )
                    )
                except ValueError as error:
                    raise ValueError(f"prompts[{index}]: {error}") from error
            while not all(search.is_over for search in searches):
                self._step()
            if not all(search.is_done for search in searches):
                raise RuntimeError("the search was given up when a step of the engine failed")
        finally:
            for search in searches:
                if not search.is_over:
                    self._engine.end_search(search)
        return [
            RequestOutput(
                prompt if isinstance(prompt, str) else None,
                ids,
                tuple(self._beam(ids, found) for found in search.best()),
            )
            for prompt, ids, search in zip(listed, tokens, searches, strict=True)
        ]

    def _beam(self, prompt: list[int], found: Hypothesis) -> Completion:
        text = ""
        if self.tokenizer is not None:
            detokenizer = Detokenizer(self.tokenizer, context=prompt)
            ended = found.finish_reason == "stop"
            shown = found.token_ids[:-1] if ended else found.token_ids
            text = "".join(map(detokenizer.add, shown)) + detokenizer.finish()
        return Completion(
            text,
            list(found.token_ids),
            found.finish_reason,
            {"logprob": found.logprob, "score": found.score},
        )

    def _submit(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int],
        cache_salt: str | Sequence[str | None] | None,
        *,
        is_streamed: bool,
    ) -> list[Generation]:
        listed = as_list(prompts)
        params = [SamplingParams()] * len(listed) if params is None else params
        each = zip(
            one_each("params", params, len(listed), SamplingParams),
            one_each("priority", priority, len(listed), int),
            one_each("cache_salt", cache_salt, len(listed), str | None),
            strict=True,
        )
        generations: list[Generation] = []
        mark = self._engine.mark()
        try:
            for index, (prompt, own) in enumerate(zip(listed, each, strict=True)):
                try:
                    if is_streamed and own[0].best_of is not None:
                        raise ValueError(
                            f"best_of: got {own[0].best_of} for a stream, expected None"
                        )
                    generations += self._admit(index, prompt, *own)
                except ValueError as error:
                    raise ValueError(f"prompts[{index}]: {error}") from error
        except BaseException:
            self._give_up(generations)
            self._engine.back_to(mark)
            raise
        self._generations |= {g.request.request_id: g for g in generations}
        return generations

    def _admit(
        self,
        index: int,
        prompt: Prompt,
        params: SamplingParams,
        priority: int,
        cache_salt: str | None,
    ) -> list[Generation]:
        if params.stop and self.tokenizer is None:
            raise ValueError(f"stop: got {params.stop!r}, expected none without a tokenizer")
        text = prompt if isinstance(prompt, str) else None
        tokens = self._token_ids(prompt)
        requests = self._engine.add(tokens, params, priority=priority, cache_salt=cache_salt)
        return [
            Generation(
                index,
                sample,
                text,
                request,
                None if self.tokenizer is None else Detokenizer(self.tokenizer, context=tokens),
            )
            for sample, request in enumerate(requests)
        ]

    def _token_ids(self, prompt: Prompt) -> list[int]:
        return prompt_token_ids(prompt, self.tokenizer, self.model.config.vocab_size)

    def _run(self, generations: list[Generation]) -> Iterator[Increment]:
        left = list(generations)
        try:
            while left:
                for generation in left:
                    while generation.increments:
                        yield generation.increments.popleft()
                left = [g for g in left if g.request.finish_reason is None or g.increments]
                if any(generation.request.is_aborted for generation in left):
                    raise RuntimeError("the request was given up when a step of the engine failed")
                if left:
                    self._step()
        finally:
            self._give_up(generations)

    def _step(self) -> None:
        """One step for all that runs, whoever asked for it."""
        read = self._engine.step()
        with self._runner.phases("detokenise"):
            for request, token in read:
                generation = self._generations.get(request.request_id)
                if generation is None:
                    continue
                is_stop_token = self._engine.is_stop_token(request, token)
                if generation.accept(token, is_stop_token=is_stop_token):
                    self._engine.finish(request, "stop")

    def _give_up(self, generations: Sequence[Generation]) -> None:
        """Forget requests, and end those that are not finished."""
        for generation in generations:
            self._generations.pop(generation.request.request_id, None)
            if not generation.request.is_over:
                self._engine.finish(generation.request, None)


def _outputs(generations: Sequence[Generation]) -> list[RequestOutput]:
    """Those of finished generations; the samples of a prompt stand side by side."""
    return [
        RequestOutput(
            samples[0].prompt,
            list(samples[0].request.prompt_token_ids),
            tuple(generation.completion() for generation in best(samples)),
        )
        for samples in (
            list(own) for _, own in groupby(generations, lambda generation: generation.index)
        )
    ]
