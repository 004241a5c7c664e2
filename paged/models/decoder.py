"""What an engine needs of a model, whichever family it is of."""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from paged.models.attention import Attention
from paged.spec import AttentionSpec


class DecoderConfig(Protocol):
    """What every family's configuration says."""

    @property
    def architecture(self) -> str:
        """The Hugging Face class that the model is saved as."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        ...

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest context the model is meant for."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text; may be empty."""
        ...

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether the logits use the embedding itself."""
        ...


@runtime_checkable
class Decoder(Protocol):
    """A decoder-only language model over a flat, ragged list of tokens, and an `nnx.Module`."""

    @property
    def config(self) -> DecoderConfig:
        """What it was built from."""
        ...

    @property
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """One per layer, what it will ask of `attention`."""
        ...

    @property
    def dtype(self) -> jnp.dtype:
        """Type of the parameters, and so of what attention is called with."""
        ...

    def __call__(
        self,
        tokens: Int[Array, " tokens"],
        positions: Int[Array, " tokens"],
        attention: Attention,
    ) -> Float[Array, "tokens hidden"]:
        """Hidden states after the final norm, in the parameters' dtype.

        Args:
            tokens: ids in [0, vocab_size), of one sequence or of many side by side.
            positions: each token's place in its own sequence.
            attention: called once per layer, in order.
        """
        ...

    def logits(self, hidden: Float[Array, "*batch hidden"]) -> Float[Array, "*batch vocab"]:
        """Scores of the next token, fp32, for any rows of what `__call__` returned."""
        ...
