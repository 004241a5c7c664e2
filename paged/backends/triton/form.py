"""What a kernel is compiled for: all that is static of a call, in one plain value.

The kernels read it as a `constexpr`. It holds numbers and words only, so that a plan can be made,
compared and tested where no triton is installed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriteForm:
    """Of a write.

    Attributes:
        num_heads: KV heads; 1 for a latent.
        head_dim: entries of a key or value that are written.
        heads_per_tile: heads that one program writes, a power of two.
        dim_pad: `head_dim` up to a power of two.
        block_size: tokens per block.
        block: stride of the cache over blocks, as all below in elements.
        slot: over tokens of a block.
        head: over heads.
        dim: over entries.
        to_value: from a key to its value; 0 for a latent.
        key_token: stride of the new keys over tokens.
        key_head: over heads.
        key_dim: over entries.
        value_token: the same of the new values.
        value_head: over heads.
        value_dim: over entries.
        is_latent: whether the cache has latents.
        storage: "numbers" where the cache's type is one that kernels compute with, else its name.
        k_scale: how the scale of keys is given: "none", "one", or "heads".
        v_scale: the same of values.
        interpreted: whether triton's interpreter will run it.
    """

    num_heads: int
    head_dim: int
    heads_per_tile: int
    dim_pad: int
    block_size: int
    block: int
    slot: int
    head: int
    dim: int
    to_value: int
    key_token: int
    key_head: int
    key_dim: int
    value_token: int
    value_head: int
    value_dim: int
    is_latent: bool
    storage: str
    k_scale: str
    v_scale: str
    interpreted: bool


@dataclass(frozen=True, slots=True)
class AttendForm:
    """Of attention.

    A tile has `tile_queries * tile_heads` rows: the heads of a group that share their keys, for
    one or several queries of one sequence.

    Attributes:
        num_heads: query heads.
        group: query heads per KV head.
        head_dim: width of a query and a key; of the whole latent where the cache has latents.
        value_dim: width of a value.
        dim_pad: `head_dim` up to a power of two; for a latent `value_dim` up to one.
        rope_pad: for a latent the rest of its width up to a power of two, else 0.
        tile_queries: queries of a tile.
        tile_heads: heads of a tile, a power of two.
        tile_tokens: keys of a step.
        block_size: tokens per block.
        block: stride of the cache over blocks, as all below in elements.
        slot: over tokens of a block.
        head: over KV heads.
        dim: over entries.
        to_value: from a key to its value; 0 for a latent.
        query_token: stride of the queries over tokens.
        query_head: over heads.
        query_dim: over entries.
        table_row: stride of the block table over sequences.
        table_entry: over blocks.
        scale: factor on the logits.
        soft_cap: or None.
        window: or None.
        has_sinks: whether one logit per head joins the denominator.
        is_latent: whether the cache has latents.
        storage: "numbers" where the cache's type is one that kernels compute with, else its name.
        native_float8: whether the hardware converts float8; else it is done by bits.
        move: the assembly, "ptx" or "gcn", in which a move keeps 8-bit values where they were
            converted; "" where there is none.
        in_float32: whether products are of float32 operands, whatever the query's type.
        k_scale: how the scale of keys is given: "none", "one", or "heads".
        v_scale: the same of values.
        splits: parts into which a decode's keys are cut.
        split_steps: steps of a part where it is the same for every batch, else 0: equal parts.
        skips_decodes: whether sequences of one query are another kernel's.
        interpreted: whether triton's interpreter will run it.
    """

    num_heads: int
    group: int
    head_dim: int
    value_dim: int
    dim_pad: int
    rope_pad: int
    tile_queries: int
    tile_heads: int
    tile_tokens: int
    block_size: int
    block: int
    slot: int
    head: int
    dim: int
    to_value: int
    query_token: int
    query_head: int
    query_dim: int
    table_row: int
    table_entry: int
    scale: float
    soft_cap: float | None
    window: int | None
    has_sinks: bool
    is_latent: bool
    storage: str
    native_float8: bool
    move: str
    in_float32: bool
    k_scale: str
    v_scale: str
    splits: int
    split_steps: int
    skips_decodes: bool
    interpreted: bool

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.tile_queries * self.tile_heads

    @property
    def head_tiles(self) -> int:
        """Tiles that cover the heads of a group."""
        return -(-self.group // self.tile_heads)
