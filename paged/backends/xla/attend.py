"""Ragged paged attention: online softmax over chunks of blocks, for groups of tiles.

Working memory is that of one chunk for one group. It depends neither on the length of a sequence
nor, beyond the result itself, on the number of tokens.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int

from paged.backends.xla.tiles import Tiles, cut, tile_rows
from paged.layouts import KVCache
from paged.metadata import AttentionMetadata
from paged.spec import AttentionSpec

# Keys and values of one chunk, in float32, for all tiles of a group. They are held about three
# times (gathered, converted, transposed for the matrix product), next to the logits.
_CHUNK_BYTES = 4 << 20
_MIN_CHUNK_TOKENS = 128

# The ratio of a logit to a larger cap may lie below the smallest number, which XLA takes for 0.
_FAR_CAP = 2.0**100


class _State(NamedTuple):
    """The online softmax of a group: G tiles, H KV heads, R = group_size * rows queries."""

    out: Float[jax.Array, "G H R value_dim"]
    peak: Float[jax.Array, "G H R"]
    total: Float[jax.Array, "G H R"]


@partial(jax.jit, static_argnames=("spec",))
def ragged_attention(
    query: Float[jax.Array, "T num_heads head_dim"],
    cache: KVCache,
    metadata: AttentionMetadata,
    spec: AttentionSpec,
    sinks: Float[jax.Array, " num_heads"] | None,
) -> tuple[Float[jax.Array, "T num_heads value_dim"], Float[jax.Array, "T num_heads"]]:
    """Output in the query's dtype, and the log-sum-exp in float32; see `Backend.attend`."""
    if not metadata.num_tokens or not metadata.block_table.size:
        # Padding at most, which sees no key; there would be no tile, or no block, to take apart.
        shape = (metadata.num_tokens, spec.num_heads)
        return jnp.zeros((*shape, spec.value_dim), query.dtype), jnp.full(shape, -jnp.inf)
    rows = tile_rows(metadata.max_query_len)
    tiles = cut(metadata, rows)
    num_tiles = tiles.sequence.shape[0]
    chunk_blocks, group = chunking(num_tiles, cache, spec, metadata)

    attend = partial(_attend_group, query, cache, metadata, spec, sinks, chunk_blocks)
    per_tile = (tiles.sequence, tiles.token, tiles.position)
    if group >= num_tiles:
        out, lse = attend(per_tile)
    else:
        num_groups = -(-num_tiles // group)
        padded = jax.tree.map(partial(_pad_tiles, num_groups * group), per_tile)
        grouped = jax.tree.map(lambda a: a.reshape(num_groups, group, *a.shape[1:]), padded)
        out, lse = lax.map(attend, grouped)
        out = out.reshape(num_groups * group, *out.shape[2:])
        lse = lse.reshape(num_groups * group, *lse.shape[2:])
    return _back_to_tokens(out, lse, tiles)


def chunking(
    num_tiles: int, cache: KVCache, spec: AttentionSpec, metadata: AttentionMetadata
) -> tuple[int, int]:
    """Blocks per chunk and tiles per group, within the budget of working memory."""
    token_bytes = spec.num_kv_heads * (spec.head_dim + spec.value_dim) * 4
    budget_tokens = max(_CHUNK_BYTES // token_bytes, 1)
    wanted = max(_MIN_CHUNK_TOKENS, budget_tokens // num_tiles)
    chunk_blocks = max(1, min(wanted // cache.block_size, metadata.block_table.shape[1]))
    group = max(1, budget_tokens // (chunk_blocks * cache.block_size))
    return chunk_blocks, min(group, num_tiles)


def _pad_tiles(length: int, array: jax.Array) -> jax.Array:
    """Tiles without queries: position -1, so that they read no key."""
    padding = ((0, length - array.shape[0]), *((0, 0) for _ in array.shape[1:]))
    return jnp.pad(array, padding, constant_values=-1 if array.ndim == 2 else 0)


def _attend_group(
    query: jax.Array,
    cache: KVCache,
    metadata: AttentionMetadata,
    spec: AttentionSpec,
    sinks: jax.Array | None,
    chunk_blocks: int,
    tiles: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[Float[jax.Array, "G rows num_heads value_dim"], Float[jax.Array, "G rows num_heads"]]:
    sequence, token, position = tiles
    num_tiles, rows = token.shape
    block_size = cache.block_size
    scaled = _scaled_queries(query[jnp.maximum(token, 0)], cache, spec)
    last = jnp.max(position, axis=1)
    first = _first_seen(position, spec)
    first_block = first // block_size
    # Tiles without queries have last -1, and so no block to read.
    num_blocks = jnp.maximum(last // block_size + 1 - first_block, 0)
    num_blocks = jnp.where(last < 0, 0, num_blocks)
    tables = metadata.block_table[sequence]

    def chunk(index: Int[jax.Array, ""], state: _State) -> _State:
        step = index * chunk_blocks + jnp.arange(chunk_blocks, dtype=jnp.int32)
        logical = first_block[:, None] + step[None, :]
        is_read = step[None, :] < num_blocks[:, None]
        column = jnp.where(is_read, logical, 0)
        # Entries past the end may hold anything: none of them is followed.
        blocks = jnp.where(is_read, jnp.take_along_axis(tables, column, axis=1), 0)
        offset = jnp.arange(block_size, dtype=jnp.int32)
        key_position = logical[:, :, None] * block_size + offset[None, None, :]
        key_position = jnp.where(is_read[:, :, None], key_position, -1)
        key_position = key_position.reshape(num_tiles, -1)
        keys, values = _gather(cache, blocks, spec)
        # What no query of the tile sees may hold NaN, and 0 * NaN is NaN.
        is_seen = (key_position >= first[:, None]) & (key_position <= last[:, None])
        values = jnp.where(is_seen[:, None, :, None], values, 0.0)
        mask = _mask(position, key_position, spec)
        mask = jnp.tile(mask, (1, spec.group_size, 1))[:, None]
        logits = jnp.einsum("ghrd,ghkd->ghrk", scaled, keys, precision=lax.Precision.HIGHEST)
        if spec.soft_cap is not None:
            uncapped = logits
            logits = spec.soft_cap * jnp.tanh(logits / spec.soft_cap)
            if spec.soft_cap > _FAR_CAP:
                # Far below it a logit stays what it is, in float32 exactly.
                logits = jnp.where(jnp.abs(uncapped) < spec.soft_cap / 4096, uncapped, logits)
        return _accumulate(state, jnp.where(mask, logits, -jnp.inf), values)

    heads_rows = (num_tiles, spec.num_kv_heads, spec.group_size * rows)
    state = _State(
        out=jnp.zeros((*heads_rows, spec.value_dim), jnp.float32),
        peak=jnp.full(heads_rows, -jnp.inf, jnp.float32),
        total=jnp.zeros(heads_rows, jnp.float32),
    )
    num_chunks = -(-jnp.max(num_blocks) // chunk_blocks)
    state = lax.fori_loop(0, num_chunks, chunk, state)
    if sinks is not None:
        state = _add_sinks(state, sinks, rows, spec)
    return _finish(state, cache, rows, spec, query.dtype)


def _scaled_queries(
    query: Float[jax.Array, "G rows num_heads head_dim"], cache: KVCache, spec: AttentionSpec
) -> Float[jax.Array, "G num_kv_heads group_rows head_dim"]:
    """Queries grouped by KV head, times every factor of the logits."""
    num_tiles, rows = query.shape[:2]
    scaled = query.astype(jnp.float32) * spec.scale
    split = scaled.reshape(num_tiles, rows, spec.num_kv_heads, spec.group_size, spec.head_dim)
    split = split.transpose(0, 2, 3, 1, 4)
    if cache.k_scale is not None:
        split = split * _by_kv_head(cache.k_scale)
    return split.reshape(num_tiles, spec.num_kv_heads, spec.group_size * rows, spec.head_dim)


def _by_kv_head(scale: Any) -> jax.Array:
    """A scale shaped to multiply `[G, num_kv_heads, group_size, rows, dim]`."""
    scale = jnp.asarray(scale, jnp.float32)
    return scale[None, :, None, None, None] if scale.ndim else scale


def _first_seen(position: Int[jax.Array, "G rows"], spec: AttentionSpec) -> Int[jax.Array, " G"]:
    """The lowest key position that any query of a tile sees."""
    if spec.window is None:
        return jnp.zeros(position.shape[0], jnp.int32)
    # Row 0 of a tile in use is always a query, and the tile's first.
    return jnp.maximum(position[:, 0] - (spec.window - 1), 0)


def _mask(
    position: Int[jax.Array, "G rows"], key_position: Int[jax.Array, "G keys"], spec: AttentionSpec
) -> jax.Array:
    """`[G, rows, keys]`: whether a query sees a key."""
    row, key = position[:, :, None], key_position[:, None, :]
    mask = (key >= 0) & (key <= row)
    return mask if spec.window is None else mask & (key > row - spec.window)


def _gather(
    cache: KVCache, blocks: Int[jax.Array, "G blocks"], spec: AttentionSpec
) -> tuple[Float[jax.Array, "G H keys head_dim"], Float[jax.Array, "G H keys value_dim"]]:
    keys, values = cache.layout.gather(
        cache.data,
        blocks,
        value_dim=spec.value_dim,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
    )

    def by_head(gathered: jax.Array) -> jax.Array:
        num_tiles, num_blocks, block_size, num_heads, width = gathered.shape
        merged = gathered.transpose(0, 3, 1, 2, 4)
        return merged.reshape(num_tiles, num_heads, num_blocks * block_size, width).astype(
            jnp.float32
        )

    return by_head(keys), by_head(values)


def _accumulate(
    state: _State,
    logits: Float[jax.Array, "G H R keys"],
    values: Float[jax.Array, "G H keys value_dim"],
) -> _State:
    peak = jnp.maximum(state.peak, jnp.max(logits, axis=-1))
    # A row that has seen no key yet measures from 0: -inf - -inf is NaN.
    origin = jnp.where(jnp.isneginf(peak), 0.0, peak)
    weights = jnp.exp(logits - origin[..., None])
    kept = jnp.exp(state.peak - origin)
    product = jnp.einsum("ghrk,ghkv->ghrv", weights, values, precision=lax.Precision.HIGHEST)
    return _State(
        out=state.out * kept[..., None] + product,
        peak=peak,
        total=state.total * kept + jnp.sum(weights, axis=-1),
    )


def _add_sinks(state: _State, sinks: jax.Array, rows: int, spec: AttentionSpec) -> _State:
    """Sinks join the denominator of rows that see a key."""
    logit = sinks.astype(jnp.float32).reshape(spec.num_kv_heads, spec.group_size)
    logit = jnp.repeat(logit, rows, axis=1)[None]
    has_keys = ~jnp.isneginf(state.peak)
    peak = jnp.where(has_keys, jnp.maximum(state.peak, logit), state.peak)
    origin = jnp.where(has_keys, peak, 0.0)
    kept = jnp.exp(state.peak - origin)
    total = state.total * kept + jnp.where(has_keys, jnp.exp(logit - origin), 0.0)
    return _State(state.out * kept[..., None], peak, total)


def _finish(
    state: _State, cache: KVCache, rows: int, spec: AttentionSpec, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """Divides, and puts rows before heads."""
    is_empty = state.total == 0
    divisor = jnp.where(is_empty, 1.0, state.total)
    out = state.out / divisor[..., None]
    lse = jnp.where(is_empty, -jnp.inf, state.peak + jnp.log(divisor))
    split = (-1, spec.num_kv_heads, spec.group_size, rows)
    out = out.reshape(*split, spec.value_dim)
    # A latent's value is its key, so that they share one scale.
    scale = cache.k_scale if spec.is_latent else cache.v_scale
    if scale is not None:
        out = out * _by_kv_head(scale)
    out = out.transpose(0, 3, 1, 2, 4).reshape(-1, rows, spec.num_heads, spec.value_dim)
    lse = lse.reshape(split).transpose(0, 3, 1, 2).reshape(-1, rows, spec.num_heads)
    return out.astype(dtype), lse


def _back_to_tokens(
    out: jax.Array, lse: jax.Array, tiles: Tiles
) -> tuple[Float[jax.Array, "T num_heads value_dim"], Float[jax.Array, "T num_heads"]]:
    """Each token's row; tokens of no sequence have out 0 and lse -inf."""
    out = out.reshape(-1, *out.shape[2:])[tiles.home]
    lse = lse.reshape(-1, lse.shape[2])[tiles.home]
    is_query = tiles.is_query[:, None]
    return jnp.where(is_query[..., None], out, 0), jnp.where(is_query, lse, -jnp.inf)
