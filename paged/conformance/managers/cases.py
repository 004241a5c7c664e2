"""The cases for block managers, in the order of the rules."""

from functools import partial

from paged.conformance.managers.case import ManagerCase

_caching = partial(ManagerCase, needs=("prefix caching",))

MANAGER_CASES: tuple[ManagerCase, ...] = (
    ManagerCase("blocks/null_block", "the null block is given out", "B1", "null_block"),
    ManagerCase(
        "blocks/fresh_order", "a fresh pool starts elsewhere than at 1", "B1", "fresh_order"
    ),
    ManagerCase("blocks/free_count", "free blocks are counted wrong", "B1", "free_count"),
    ManagerCase(
        "blocks/rounding",
        "a block too many or too few at a multiple of the block size",
        "B1",
        "rounding",
    ),
    ManagerCase(
        "blocks/failed_allocation",
        "an allocation that fails keeps the blocks it had got",
        "B2",
        "failed_allocation",
    ),
    ManagerCase(
        "blocks/failed_append",
        "an append that fails keeps blocks, or counts its tokens",
        "B2",
        "failed_append",
    ),
    ManagerCase(
        "blocks/refused_arguments",
        "a call with an argument out of range leaves a trace",
        "B2",
        "refused_arguments",
    ),
    ManagerCase(
        "blocks/can_tells_the_truth",
        "a call that was announced as possible fails, or the other way round",
        "B2",
        "can_tells_the_truth",
    ),
    _caching("prefix/free_hit_is_consumed", "a hit block is counted as free as well", "B3"),
    _caching("prefix/full_blocks_only", "a hit of all tokens leaves nothing to compute", "B4"),
    _caching("prefix/order_of_freeing", "the head of a prefix is overwritten first", "B5"),
    _caching("prefix/least_recently_used", "a block in recent use is evicted", "B6"),
    _caching("prefix/touch", "a shared block is freed by the first of its holders", "B7"),
    ManagerCase(
        "blocks/append_only",
        "an append rewrites a table that a step in flight reads",
        "B8",
        "append_only",
    ),
    ManagerCase("blocks/one_owner", "two requests are given one block", "B8", "one_owner"),
    ManagerCase(
        "blocks/own_lists",
        "a caller that changes a list it was given changes the manager's table",
        "B8",
        "own_lists",
    ),
    ManagerCase(
        "blocks/random_history",
        "a leak, or a block given twice, after many calls",
        "B8",
        "random_history",
    ),
    _caching(
        "prefix/same_block_at_once", "a table is rewritten to share a block computed twice", "B8"
    ),
    _caching("prefix/hash_of_all_keys", "one tenant's blocks are given to another", "B9"),
    _caching("prefix/colliding_hash", "a hash collision gives another's blocks", "B9"),
    ManagerCase(
        "window/blocks_before_it",
        "blocks before the window are kept, or go while a step reads them",
        "B10",
        needs=("sliding window",),
    ),
    ManagerCase(
        "groups/fixed_point",
        "one group's allocation evicts another's hit",
        "B11",
        needs=("groups", "prefix caching"),
    ),
    ManagerCase(
        "fork/copy_on_write", "a fork writes into a block that it shares", "B12", needs=("fork",)
    ),
    ManagerCase(
        "draft/rejected_tokens", "rejected drafts keep their blocks", "B13", needs=("speculation",)
    ),
    ManagerCase(
        "blocks/preemption", "a preempted request leaves blocks behind", "B14", "preemption"
    ),
    ManagerCase(
        "blocks/larger_than_the_pool",
        "a prompt that can never fit waits for ever",
        "B15",
        "larger_than_the_pool",
    ),
    ManagerCase("blocks/double_free", "a block freed twice gets two owners", "B16", "double_free"),
    ManagerCase(
        "blocks/unknown_request",
        "a request that is not there is taken for empty",
        "B16",
        "unknown_request",
    ),
    ManagerCase(
        "blocks/same_request_twice",
        "a second allocation loses the blocks of the first",
        "B16",
        "same_request_twice",
    ),
    _caching("prefix/reset", "a reset while blocks are in use", "B16"),
    _caching("prefix/events", "events that do not add up to the index", "B17"),
    ManagerCase(
        "ranks/fewest_blocks",
        "a rank is given a block that it has not got",
        "B18",
        needs=("ranks",),
    ),
)
"""All cases."""
