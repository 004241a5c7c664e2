"""Which rows a tile has, and which keys each of them sees."""

import triton
import triton.language as tl


@triton.jit
def tile_rows(first_query, num_queries, group_head, FORM: tl.constexpr):
    """For each row its query, its head within the group, and whether there is such a row.

    Args:
        first_query: the tile's first query, counted within its sequence.
        num_queries: queries of the sequence.
        group_head: the tile's first head, counted within its group.
        FORM: see `AttendForm`.
    """
    row = tl.arange(0, FORM.rows)
    query = first_query + row // FORM.tile_heads
    head = group_head + row % FORM.tile_heads
    return query, head, (query < num_queries) & (head < FORM.group)


@triton.jit
def seen(token, position, first_key, end_key, FORM: tl.constexpr):
    """Whether a row at a position sees a token: causal, in its window, and there at all."""
    is_held = ((token >= first_key) & (token < end_key))[None, :]
    if FORM.tile_queries == 1:
        # All rows stand at one position, from which the bounds were made.
        return is_held
    else:
        sees = is_held & (token[None, :] <= position[:, None])
        if FORM.window is not None:
            sees = sees & (token[None, :] > position[:, None] - FORM.window)
        return sees


@triton.jit
def first_seen(position, FORM: tl.constexpr):
    """The first key that a query at a position sees."""
    if FORM.window is None:
        return position * 0
    else:
        return tl.maximum(position + 1 - FORM.window, 0)


@triton.jit
def whole_steps(first_key, end_key, first_position, last_position, FORM: tl.constexpr):
    """Where the steps begin whose every key every row sees, and where they end.

    Args:
        first_key: first key that any row sees.
        end_key: the key after the last one.
        first_position: of the tile's first query.
        last_position: of its last.
        FORM: see `AttendForm`.

    Returns:
        (begin, whole_begin, whole_end), multiples of a step's tokens: steps from `begin` to
        `whole_begin` and from `whole_end` on need a mask.
    """
    begin = first_key // FORM.tile_tokens * FORM.tile_tokens
    whole_end = tl.minimum(first_position + 1, end_key) // FORM.tile_tokens * FORM.tile_tokens
    whole_end = tl.maximum(whole_end, begin)
    whole_begin = begin
    if FORM.window is not None:
        first = tl.maximum(tl.maximum(last_position + 1 - FORM.window, first_key), 0)
        whole_begin = (first + FORM.tile_tokens - 1) // FORM.tile_tokens * FORM.tile_tokens
        whole_begin = tl.minimum(whole_begin, whole_end)
    return begin, whole_begin, whole_end


@triton.jit
def slot_ptrs(
    cache_ptr, start, table_ptr, first_key, end_key, MASKED: tl.constexpr, FORM: tl.constexpr
):
    """Where the slots of a step's tokens lie in the cache.

    Args:
        cache_ptr: the cache.
        start: the step's first token.
        table_ptr: the sequence's row of the block table.
        first_key: entries of tokens before it are not followed,
        end_key: nor those from it on.
        MASKED: whether there are such tokens.
        FORM: see `AttendForm`.
    """
    step = tl.arange(0, FORM.tile_tokens)
    if FORM.block_size % FORM.tile_tokens == 0:
        # A step lies in one block: one entry, and addresses that differ by constants.
        block = tl.load(table_ptr + start // FORM.block_size * FORM.table_entry)
        offset = block.to(tl.int64) * FORM.block + start % FORM.block_size * FORM.slot
        return (cache_ptr + offset) + step * FORM.slot
    else:
        token = start + step
        entry = table_ptr + token // FORM.block_size * FORM.table_entry
        if MASKED:
            block = tl.load(entry, mask=(token >= first_key) & (token < end_key), other=0)
        else:
            block = tl.load(entry)
        return cache_ptr + (block.to(tl.int64) * FORM.block + token % FORM.block_size * FORM.slot)


@triton.jit
def query_offsets(token, head, FORM: tl.constexpr):
    """Where the queries of (token, head) begin, in elements, 64 bits."""
    return token.to(tl.int64) * FORM.query_token + head * FORM.query_head


@triton.jit
def sequence_of_tile(tile, starts_ptr, num_seqs, FORM: tl.constexpr):
    """The sequence that a tile of queries belongs to, and which of its tiles it is.

    Sequence s has its tiles from `starts[s] // tile_queries + s` on, which leaves room enough for
    every sequence's last, half-full one.
    """
    low = tile * 0
    high = low + num_seqs
    # starts[low] // tile_queries + low <= tile < the same of high.
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(starts_ptr + middle) // FORM.tile_queries + middle
        if first <= tile:
            low = middle
        else:
            high = middle
    return low, tile - (tl.load(starts_ptr + low) // FORM.tile_queries + low)
