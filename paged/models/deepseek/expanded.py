"""The expanded form of latent attention: keys and values up-projected from the cached latents.

    key of head h    [latent @ key_up[h].T, rotated part]        qk_nope_head_dim + qk_rope_head_dim
    value of head h  latent @ value_up[h].T                      v_head_dim

Plain multi-head attention with an online softmax (arXiv:2205.14135) over tiles of keys. Each tile
of a sequence's latents is gathered through the layout and projected once, then meets every tile of
queries that sees it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from paged.layouts import KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

_QUERY_TILE = 64
_KEY_TILE = 128


class UpProjection(NamedTuple):
    """What takes a latent to each head's key and value.

    Attributes:
        key: `[heads, qk_nope_head_dim, kv_lora_rank]`.
        value: `[heads, v_head_dim, kv_lora_rank]`.
    """

    key: Float[Array, "heads nope rank"]
    value: Float[Array, "heads value_dim rank"]


class _State(NamedTuple):
    """The softmax of each query so far: weighted values, sum of weights, and largest logit."""

    out: Float[Array, "tokens heads value_dim"]
    total: Float[Array, "tokens heads"]
    peak: Float[Array, "tokens heads"]


def expand(
    latents: Float[Array, "keys latent"], up: UpProjection
) -> tuple[Float[Array, "keys heads qk_dim"], Float[Array, "keys heads value_dim"]]:
    """Each head's keys and values of some latents, rotated parts included, in their dtype."""
    heads, _, rank = up.key.shape
    compressed, rotated = latents[:, :rank], latents[:, rank:]
    plain = jnp.einsum("sr,hnr->shn", compressed, up.key)
    shared = jnp.broadcast_to(rotated[:, None, :], (len(latents), heads, rotated.shape[-1]))
    value = jnp.einsum("sr,hvr->shv", compressed, up.value)
    return jnp.concatenate([plain, shared], axis=-1), value


def attend_expanded(
    query: Float[Array, "tokens heads qk_dim"],
    cache: KVCache,
    metadata: AttentionMetadata,
    up: UpProjection,
    spec: AttentionSpec,
    first: Int[Array, ""] | int = 0,
) -> Float[Array, "tokens heads value_dim"]:
    """Attention of the sequences from `first` on; tokens of no such sequence get 0.

    Args:
        query: rotated queries, `qk_nope_head_dim + qk_rope_head_dim` wide.
        cache: of the layer, this step's latents written.
        metadata: the step's.
        up: the layer's up-projection.
        spec: the latent one; its scale is that of both forms.
        first: sequence to begin with.

    Returns:
        Outputs of the heads in the query's dtype; logits, softmax and sums are fp32.
    """
    tokens, heads, _ = query.shape
    # A tile may reach past the last token.
    tile = min(_QUERY_TILE, tokens)
    padded = jnp.pad(query, ((0, tile), (0, 0), (0, 0)))
    state = _State(
        jnp.zeros((tokens + tile, heads, up.value.shape[1]), jnp.float32),
        jnp.zeros((tokens + tile, heads), jnp.float32),
        jnp.full((tokens + tile, heads), -jnp.inf, jnp.float32),
    )
    blocks = max(1, min(_KEY_TILE // cache.block_size, metadata.block_table.shape[1]))
    width = blocks * cache.block_size
    # Whole tiles of blocks: what lies past a sequence's end is masked.
    table = jnp.pad(metadata.block_table, ((0, 0), (0, -metadata.block_table.shape[1] % blocks)))
    starts, lengths = jnp.asarray(metadata.query_start_loc), jnp.asarray(metadata.seq_lens)

    def sequence(row: Array, state: _State) -> _State:
        start, length = starts[row], lengths[row]
        count = starts[row + 1] - start
        history = length - count

        def keys(number: Array, state: _State) -> _State:
            ids = jax.lax.dynamic_slice(table, (row, number * blocks), (1, blocks))[0]
            key, value = expand(_latents(cache, ids, spec, query.dtype), up)
            first_key = number * width

            def queries(index: Array, state: _State) -> _State:
                return _meet(
                    state, padded, key, value,
                    spec=spec, tile=tile, start=start + index * tile,
                    left=count - index * tile, lead=history + index * tile - first_key,
                )  # fmt: skip

            # Queries before the tile's first key see none of it.
            seeing = jnp.maximum(first_key - history, 0) // tile
            return jax.lax.fori_loop(seeing, -(-count // tile), queries, state)

        return jax.lax.fori_loop(0, -(-length // width), keys, state)

    last = jnp.asarray(metadata.distribution)[2]
    state = jax.lax.fori_loop(jnp.asarray(first, jnp.int32), last, sequence, state)
    total = jnp.where(state.total == 0, 1.0, state.total)[..., None]
    return (state.out / total)[:tokens].astype(query.dtype)


def _latents(
    cache: KVCache, block_ids: Int[Array, " blocks"], spec: AttentionSpec, dtype: jnp.dtype
) -> Float[Array, "keys latent"]:
    """The latents of some blocks, one after another, as what they stand for."""
    stored, _ = cache.layout.gather(
        cache.data, block_ids, num_kv_heads=1, head_dim=spec.head_dim, value_dim=1
    )
    latents = stored.reshape(-1, spec.head_dim).astype(jnp.float32)
    if cache.k_scale is not None:
        latents = latents * jnp.asarray(cache.k_scale, jnp.float32).reshape(1, 1)
    return latents.astype(dtype)


def _meet(
    state: _State,
    query: Float[Array, "tokens heads qk_dim"],
    key: Float[Array, "keys heads qk_dim"],
    value: Float[Array, "keys heads value_dim"],
    *,
    spec: AttentionSpec,
    tile: int,
    start: Array,
    left: Array,
    lead: Array,
) -> _State:
    """One tile of queries, from token `start` on, meets one tile of keys.

    The first of its `left` queries stands `lead` tokens after the tile's first key.
    """
    own = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, tile), state)
    queries = jax.lax.dynamic_slice_in_dim(query, start, tile)
    logits = spec.scale * jnp.einsum(
        "thd,shd->ths", queries, key, preferred_element_type=jnp.float32
    )
    place = jnp.arange(tile)[:, None]
    # Behind the last query come the next sequence's: they are left as they are.
    seen = (jnp.arange(key.shape[0])[None, :] <= place + lead) & (place < left)
    logits = jnp.where(seen[:, None, :], logits, -jnp.inf)
    peak = jnp.maximum(own.peak, logits.max(axis=-1))
    # -inf - -inf is NaN: what has seen no key yet is measured from 0.
    origin = jnp.where(jnp.isneginf(peak), 0.0, peak)
    weights = jnp.exp(logits - origin[..., None])
    kept = jnp.exp(own.peak - origin)
    added = jnp.einsum("ths,shv->thv", weights, value.astype(jnp.float32))
    new = _State(own.out * kept[..., None] + added, own.total * kept + weights.sum(axis=-1), peak)
    return jax.tree.map(
        lambda whole, part: jax.lax.dynamic_update_slice_in_dim(whole, part, start, 0), state, new
    )
