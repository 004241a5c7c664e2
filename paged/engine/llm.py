"""`LLM`: text in, text out, over a paged cache."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from paged.backends import Backend
from paged.blocks import BlockTable, KVCacheManager
from paged.dtypes import dtype_name
from paged.engine.capacity import default_num_blocks
from paged.engine.engine import Engine
from paged.engine.generation import Generation
from paged.engine.outputs import Increment, RequestOutput
from paged.engine.progress import RunProgress
from paged.engine.resolving import resolve_layers
from paged.engine.runner import Runner
from paged.engine.sampling import SamplingParams
from paged.engine.stats import EngineStats
from paged.engine.text import Detokenizer
from paged.layouts import Layout
from paged.models import Decoder, Tokenizer, load_model, load_tokenizer, resolve_model
from paged.models.layers import Float32Param

Prompt = str | Sequence[int]
"""A text, or the token ids of one."""


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
        dtype: of parameters and cache; by default what the model has.
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
        seed: int | None = None,
    ) -> None:
        for name, value, least in (
            ("block_size", block_size, 1),
            ("num_blocks", num_blocks, 2),
            ("max_num_seqs", max_num_seqs, 1),
            ("max_num_batched_tokens", max_num_batched_tokens, 1),
            ("max_model_len", max_model_len, 2),
        ):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name}: got {value!r}, expected an integer of at least {least}")
        if not isinstance(model, str | Path):
            if not isinstance(model, Decoder):
                raise ValueError(f"model: got {model!r}, expected a name, a folder or a `Decoder`")
            self.model: Decoder = model if dtype is None else _cast(model, dtype)
            self.tokenizer = tokenizer
        else:
            self.model = load_model(model, dtype=dtype)
            self.tokenizer = tokenizer or _tokenizer_of(model)
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
        manager = KVCacheManager(num_blocks, block_size)
        # No request can be longer than the pool, so no row of the table needs to be.
        blocks_per_row = min(-(-max_model_len // block_size), num_blocks - 1)
        table = BlockTable(max_num_seqs, blocks_per_row, block_size, device_put=np.asarray)
        runner = Runner(
            self.model,
            self.resolutions,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            cache_dtype=storage,
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
            seed=seed,
        )
        self._generations: dict[int, Generation] = {}

    @property
    def stats(self) -> EngineStats:
        """Counts and times since this object was made."""
        return self._engine.stats

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Generate for all prompts, batched as they fit.

        Args:
            prompts: one prompt or a list of them, each a string or token ids.
            params: one for all, or one for each; the defaults of `SamplingParams` without.
            progress: whether to show a bar; None shows one on a terminal when it takes long.

        Returns:
            One output for each prompt, in their order.

        Raises:
            ValueError: a prompt or its parameters that cannot be served, by its place in the list.
                Nothing has run then.
        """
        generations = self._submit(prompts, params)
        with RunProgress(len(generations), progress) as bar:
            for increment in self._run(generations):
                finished = int(increment.finish_reason is not None)
                bar.advance(tokens=len(increment.token_ids), finished=finished)
        return [generation.output() for generation in generations]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[Increment]:
        """As `generate`, but what each step adds comes as it is known.

        The texts of a prompt's increments add up to what `generate` gives. Requests are checked and
        queued when the first increment is asked for; closing the iterator gives them up. Several
        streams may run side by side.
        """
        yield from self._run(self._submit(prompts, params))

    def _submit(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[Generation]:
        listed = _as_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(listed)
        if len(params) != len(listed):
            raise ValueError(
                f"params: got {len(params)}, expected one for each of {len(listed)} prompts"
            )
        for index, own in enumerate(params):
            if not isinstance(own, SamplingParams):
                raise ValueError(f"params[{index}]: got {own!r}, expected SamplingParams")
        generations: list[Generation] = []
        try:
            for index, (prompt, own) in enumerate(zip(listed, params, strict=True)):
                try:
                    generations.append(self._admit(index, prompt, own))
                except ValueError as error:
                    raise ValueError(f"prompts[{index}]: {error}") from error
        except BaseException:
            self._give_up(generations)
            raise
        self._generations |= {g.request.request_id: g for g in generations}
        return generations

    def _admit(self, index: int, prompt: Prompt, params: SamplingParams) -> Generation:
        if params.stop and self.tokenizer is None:
            raise ValueError(f"stop: got {params.stop!r}, expected none without a tokenizer")
        text = prompt if isinstance(prompt, str) else None
        request = self._engine.add(self._token_ids(prompt), params)
        detokenizer = None
        if self.tokenizer is not None:
            detokenizer = Detokenizer(self.tokenizer, context=request.prompt_token_ids)
        return Generation(index, text, request, detokenizer)

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("prompt: got a string, expected token ids without a tokenizer")
            ids = self.tokenizer.encode(prompt)
        elif isinstance(prompt, Sequence | np.ndarray):
            ids = list(prompt)
        else:
            raise ValueError(f"prompt: got {prompt!r}, expected a string or token ids")
        vocab = self.model.config.vocab_size
        for place, token in enumerate(ids):
            if not isinstance(token, int | np.integer) or not 0 <= token < vocab:
                raise ValueError(
                    f"prompt[{place}]: got {token!r}, expected an integer 0 <= token < {vocab}"
                )
        return [int(token) for token in ids]

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
        for request, token in self._engine.step():
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


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    listed: list[Any] = list(prompts)
    # Integers mean that the whole is one prompt of token ids.
    if listed and all(isinstance(item, int | np.integer) for item in listed):
        return [listed]
    return listed


def _tokenizer_of(model: str | Path) -> Tokenizer | None:
    folder = resolve_model(model)
    return load_tokenizer(folder) if (folder / "tokenizer.json").is_file() else None


def _cast(model: Decoder, dtype: DTypeLike) -> Decoder:
    graph, state = nnx.split(model)
    cast = {
        path: variable
        if isinstance(variable, Float32Param)
        else variable.replace(jnp.asarray(variable[...], dtype))
        for path, variable in nnx.to_flat_state(state)
    }
    return nnx.merge(graph, nnx.from_flat_state(cast))
