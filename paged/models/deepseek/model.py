"""The DeepSeek V2 and V3 decoder over a flat, ragged list of tokens."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from paged.models.attention import Attention
from paged.models.deepseek.config import DeepseekConfig
from paged.models.deepseek.mla import Form, LatentAttention
from paged.models.deepseek.moe import MixtureOfExperts
from paged.models.layers import Embedding, GatedMLP, Linear, RMSNorm
from paged.models.rope import inverse_frequencies, rotation


class DeepseekLayer(nnx.Module):
    """Latent attention, then one MLP or many, each on a normed copy of the residual stream."""

    def __init__(
        self, config: DeepseekConfig, layer: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.attention = LatentAttention(config, layer, dtype=dtype, rngs=rngs)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.mlp = (
            GatedMLP(config.dense_mlp, dtype=dtype, rngs=rngs)
            if layer < config.num_dense_layers
            else MixtureOfExperts(config, dtype=dtype, rngs=rngs)
        )

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        cos: Float[Array, "tokens 1 pairs"],
        sin: Float[Array, "tokens 1 pairs"],
        attention: Attention,
    ) -> Float[Array, "tokens hidden"]:
        """The residual stream after this layer."""
        x = x + self.attention(self.attention_norm(x), cos, sin, attention)
        return x + self.mlp(self.mlp_norm(x))


class DeepseekTransformer(nnx.Module):
    """A decoder-only language model of the DeepSeek V2 and V3 family; a `Decoder`.

    Attributes:
        config: what it was built from.
        attention_specs: one per layer, what it will ask of `attention`: latent ones.

    Args:
        config: shapes and arithmetic.
        rngs: random streams of the initial weights.
        dtype: type of the parameters, and of the activations between them; routers are fp32
            whatever it is, as are norms, rotations, softmax and logits.
    """

    def __init__(
        self, config: DeepseekConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32
    ) -> None:
        self.config = config
        self.attention_specs = config.attention_specs
        self.embedding = Embedding(config.vocab_size, config.hidden_size, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(
            [DeepseekLayer(config, i, dtype=dtype, rngs=rngs) for i in range(config.num_layers)]
        )
        self.final_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype)
        self.head = (
            None
            if config.tie_word_embeddings
            else Linear(config.hidden_size, config.vocab_size, dtype=dtype, rngs=rngs)
        )

    @property
    def dtype(self) -> jnp.dtype:
        """Type of the parameters, and so of the queries and latents."""
        return self.embedding.weight[...].dtype

    def use_form(self, form: Form) -> None:
        """Which form every layer attends in over paged caches; see `LatentAttention.form`.

        Raises:
            ValueError: none of "auto", "absorbed" and "expanded".
        """
        if form not in ("auto", "absorbed", "expanded"):
            raise ValueError(f"form: got {form!r}, expected 'auto', 'absorbed' or 'expanded'")
        for layer in self.layers:
            layer.attention.form = form

    def __call__(
        self,
        tokens: Int[Array, " tokens"],
        positions: Int[Array, " tokens"],
        attention: Attention,
    ) -> Float[Array, "tokens hidden"]:
        """See `Decoder`."""
        rope = self.config.rope
        frequencies = inverse_frequencies(rope, self.config.qk_rope_head_dim)
        cos, sin = rotation(positions, frequencies, rope.amplitude)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, attention)
        return self.final_norm(x)

    def logits(self, hidden: Float[Array, "*batch hidden"]) -> Float[Array, "*batch vocab"]:
        """See `Decoder`."""
        if self.head is None:
            return self.embedding.attend(hidden)
        return jnp.matmul(hidden, self.head.kernel[...], preferred_element_type=jnp.float32)
