"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), in either of its two forms.

A token keeps one latent per layer: `kv_lora_rank` entries that every head's key and value are
projected from, and `qk_rope_head_dim` rotated entries that are part of every head's key.
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from paged.metadata import AttentionMetadata
from paged.models.attention import Attention
from paged.models.deepseek.config import DeepseekConfig
from paged.models.deepseek.cost import ever_prefers_expanded, prefers_expanded
from paged.models.deepseek.expanded import UpProjection, attend_expanded
from paged.models.layers import Linear, RMSNorm, residual_gain
from paged.models.paged_attention import PagedAttention
from paged.models.rope import rotate

Form = Literal["auto", "absorbed", "expanded"]
"""How to attend: "auto" chooses for each sequence by `prefers_expanded`."""

_NORM_EPS = 1e-6


class LatentAttention(nnx.Module):
    """Projections into and out of the latent space around attention over latents.

    Attributes:
        form: which form is taken where the caller's attention leaves a choice, that is over
            paged caches. Every other `Attention` gets the absorbed form, which it sees as
            multi-query attention.
    """

    def __init__(
        self, config: DeepseekConfig, layer: int, *, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.layer, self.config, self.form = layer, config, "auto"
        hidden, heads, rank = config.hidden_size, config.num_heads, config.kv_lora_rank
        bias, queries = config.attention_bias, heads * config.qk_head_dim
        if config.q_lora_rank is None:
            self.query = Linear(hidden, queries, dtype=dtype, rngs=rngs)
            self.query_down = self.query_norm = None
        else:
            self.query_down = Linear(
                hidden, config.q_lora_rank, use_bias=bias, dtype=dtype, rngs=rngs
            )
            self.query_norm = RMSNorm(config.q_lora_rank, _NORM_EPS, dtype=dtype)
            self.query = Linear(config.q_lora_rank, queries, dtype=dtype, rngs=rngs)
        self.latent_down = Linear(hidden, config.latent_dim, use_bias=bias, dtype=dtype, rngs=rngs)
        self.latent_norm = RMSNorm(rank, _NORM_EPS, dtype=dtype)
        # [out, in], unlike a `Linear`: cut by heads without a copy, and either form contracts it
        # with one side or the other.
        init = jax.nn.initializers.normal(rank**-0.5)
        rows = heads * (config.qk_nope_head_dim + config.v_head_dim)
        self.up = nnx.Param(init(rngs.params(), (rows, rank), dtype))
        self.output = Linear(
            heads * config.v_head_dim, hidden, use_bias=bias,
            gain=residual_gain(config.num_layers), dtype=dtype, rngs=rngs,
        )  # fmt: skip

    @property
    def up_projection(self) -> UpProjection:
        """From the latent to each head's key and value."""
        config = self.config
        up = self.up[...].reshape(config.num_heads, -1, config.kv_lora_rank)
        return UpProjection(up[:, : config.qk_nope_head_dim], up[:, config.qk_nope_head_dim :])

    def __call__(
        self,
        x: Float[Array, "tokens hidden"],
        cos: Float[Array, "tokens 1 pairs"],
        sin: Float[Array, "tokens 1 pairs"],
        attention: Attention,
    ) -> Float[Array, "tokens hidden"]:
        """What this layer's attention adds to the residual stream."""
        query, latent = self._queries(x, cos, sin), self._latents(x, cos, sin)
        if isinstance(attention, PagedAttention):
            out = self._attend_paged(query, latent, attention)
        else:
            up = self.up_projection
            out = leave(attention(self.layer, absorb(query, up), latent, None), up)
        return self.output(out.reshape(x.shape[0], -1))

    def _queries(self, x: Array, cos: Array, sin: Array) -> Float[Array, "tokens heads qk_dim"]:
        config = self.config
        if self.query_down is not None and self.query_norm is not None:
            x = self.query_norm(self.query_down(x))
        query = self.query(x).reshape(x.shape[0], config.num_heads, config.qk_head_dim)
        plain, turning = jnp.split(query, [config.qk_nope_head_dim], axis=-1)
        return jnp.concatenate([plain, self._rotated(turning, cos, sin)], axis=-1)

    def _latents(self, x: Array, cos: Array, sin: Array) -> Float[Array, "tokens 1 latent"]:
        plain, turning = jnp.split(self.latent_down(x), [self.config.kv_lora_rank], axis=-1)
        turned = self._rotated(turning[:, None, :], cos, sin)
        return jnp.concatenate([self.latent_norm(plain)[:, None, :], turned], axis=-1)

    def _rotated(self, x: Float[Array, "tokens heads rope"], cos: Array, sin: Array) -> Array:
        if self.config.rope_interleave:
            # Queries and keys alike, so that their products stay as they were.
            x = jnp.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
        return rotate(x, cos, sin)

    def _attend_paged(
        self, query: Array, latent: Array, attention: PagedAttention
    ) -> Float[Array, "tokens heads value_dim"]:
        """Both forms over one cache: first sequences absorbed, from one on expanded."""
        up, metadata, spec = self.up_projection, attention.metadata, self.config.attention_specs[0]
        cache = attention.write(self.layer, latent, None)

        def absorbed(metadata: AttentionMetadata) -> Array:
            out = attention.attend(self.layer, absorb(query, up), metadata=metadata)
            return leave(out, up)

        resolution, form = attention.resolution(self.layer), self.form
        machine = {
            "target": resolution.target,
            "operation_cost": resolution.operation_cost,
            "itemsize": query.dtype.itemsize,
        }
        # Static: a step in which nothing can prefer the other form is compiled without it.
        if form == "auto" and not ever_prefers_expanded(
            self.config, metadata.max_query_len, **machine
        ):
            form = "absorbed"
        if form == "absorbed":
            return absorbed(metadata)
        if form == "expanded":
            return attend_expanded(query, cache, metadata, up, spec)
        first = first_expanded(self.config, metadata, **machine)
        expanded = attend_expanded(query, cache, metadata, up, spec, first)
        # A step of prefills alone pays nothing for the form that it does not take.
        return expanded + jax.lax.cond(
            first > 0, absorbed, lambda _: jnp.zeros_like(expanded), upto(metadata, first)
        )


def absorb(
    query: Float[Array, "tokens heads qk_dim"], up: UpProjection
) -> Float[Array, "tokens heads latent"]:
    """Queries in the latent space, where q . (up @ latent) is (q @ up) . latent."""
    plain, turned = jnp.split(query, [up.key.shape[1]], axis=-1)
    return jnp.concatenate([jnp.einsum("thn,hnr->thr", plain, up.key), turned], axis=-1)


def leave(
    out: Float[Array, "tokens heads rank"], up: UpProjection
) -> Float[Array, "tokens heads value_dim"]:
    """Outputs of the absorbed form out of the latent space."""
    return jnp.einsum("thr,hvr->thv", out, up.value)


def first_expanded(
    config: DeepseekConfig, metadata: AttentionMetadata, **machine: Any
) -> Int[Array, ""]:
    """The first sequence that prefers the expanded form on a machine; `num_seqs` where none does.

    Those behind it take that form too, so that each form gets a range of sequences: the contract
    puts decodes first, which are what must not be expanded.
    """
    starts = jnp.asarray(metadata.query_start_loc)
    prefers = prefers_expanded(
        config,
        starts[1:] - starts[:-1],
        jnp.asarray(metadata.seq_lens),
        **machine,
    )
    none = jnp.asarray(metadata.distribution)[2]
    return jnp.where(prefers.any(), jnp.argmax(prefers), none).astype(jnp.int32)


def upto(metadata: AttentionMetadata, end: Int[Array, ""]) -> AttentionMetadata:
    """The metadata of the sequences before `end`: the rest, and their tokens, become padding."""
    starts = jnp.asarray(metadata.query_start_loc)
    lengths = jnp.asarray(metadata.seq_lens)
    return replace(
        metadata,
        query_start_loc=jnp.minimum(starts, starts[end]),
        seq_lens=jnp.where(jnp.arange(len(lengths)) < end, lengths, 0),
        distribution=jnp.minimum(jnp.asarray(metadata.distribution), end),
    )
