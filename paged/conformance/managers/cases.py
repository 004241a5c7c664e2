"""The cases for block managers, in the order of the rules."""

from functools import partial

from paged.conformance.managers.case import ManagerCase

EVERYTHING = frozenset(
    {
        "prefix caching",
        "partial tails",
        "fork",
        "groups",
        "sliding window",
        "speculation",
        "swap",
        "watermark",
        "batches",
        "ranks",
    }
)
"""All words for what a manager may have."""

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
    _caching(
        "prefix/free_hit_is_consumed",
        "a hit block is counted as free as well",
        "B3",
        "free_hit_is_consumed",
    ),
    _caching(
        "prefix/full_blocks_only",
        "a hit of all tokens leaves nothing to compute",
        "B4",
        "full_blocks_only",
    ),
    _caching(
        "prefix/order_of_freeing",
        "the head of a prefix is overwritten first",
        "B5",
        "order_of_freeing",
    ),
    _caching(
        "prefix/least_recently_used",
        "a block in recent use is evicted",
        "B6",
        "least_recently_used",
    ),
    _caching("prefix/touch", "a shared block is freed by the first of its holders", "B7", "touch"),
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
        "prefix/same_block_at_once",
        "a table is rewritten to share a block computed twice",
        "B8",
        "same_block_at_once",
    ),
    _caching(
        "prefix/hash_of_all_keys",
        "one tenant's blocks are given to another",
        "B9",
        "hash_of_all_keys",
    ),
    _caching(
        "prefix/colliding_hash", "a hash collision gives another's blocks", "B9", "colliding_hash"
    ),
    ManagerCase(
        "window/blocks_before_it",
        "blocks before the window are kept, or go while a step reads them",
        "B10",
        "blocks_before_it",
        needs=("sliding window",),
    ),
    ManagerCase(
        "window/in_flight",
        "a block is given out while a step reads it",
        "B10",
        "window_in_flight",
        needs=("sliding window",),
    ),
    ManagerCase(
        "window/hit",
        "a hit asks for blocks before the window, or does without one inside it",
        "B10",
        "window_hit",
        needs=("sliding window", "prefix caching"),
    ),
    ManagerCase(
        "window/chunked",
        "blocks before a chunk are kept, or a chunk's own go",
        "B10",
        "chunked",
        needs=("sliding window", "prefix caching"),
    ),
    ManagerCase(
        "groups/fixed_point",
        "one group's allocation evicts another's hit",
        "B11",
        "fixed_point",
        needs=("groups", "prefix caching"),
    ),
    ManagerCase(
        "groups/two_block_sizes",
        "a hit that is no multiple of a group's block size",
        "B11",
        "groups_of_two_sizes",
        needs=("groups", "prefix caching"),
    ),
    ManagerCase(
        "fork/copy_on_write",
        "a fork writes into a block that it shares",
        "B12",
        "copy_on_write",
        needs=("fork", "prefix caching"),
    ),
    ManagerCase(
        "fork/copy_of_a_copy",
        "a copy is made of a block that is itself still to be filled",
        "B12",
        "copy_of_a_copy",
        needs=("fork", "prefix caching"),
    ),
    ManagerCase(
        "fork/copies_before_writes",
        "a copy is made after the write, or one fork reads another's tokens",
        "B12",
        "copies_before_writes",
        needs=("fork", "prefix caching"),
    ),
    ManagerCase(
        "fork/all_or_nothing",
        "a fork or a copy that fails leaves references behind",
        "B2",
        "fork_is_all_or_nothing",
        needs=("fork", "prefix caching"),
    ),
    ManagerCase(
        "draft/rejected_tokens",
        "rejected drafts keep their blocks, or drafts are cached",
        "B13",
        "rejected_tokens",
        needs=("speculation", "prefix caching"),
    ),
    ManagerCase(
        "swap/out_and_in",
        "a request comes back from the host without its blocks",
        "B14",
        "swap",
        needs=("swap", "prefix caching"),
    ),
    ManagerCase(
        "blocks/watermark",
        "an admission takes what those that run are about to need",
        "B15",
        "watermark",
        needs=("watermark",),
    ),
    ManagerCase(
        "prefix/partial_tail",
        "tokens are copied that are not written yet, or another tenant's",
        "B9",
        "partial_tail",
        needs=("partial tails",),
    ),
    ManagerCase(
        "batch/all_or_none",
        "a batch that fails has moved some of its rows",
        "B2",
        "batch",
        needs=("batches", "prefix caching"),
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
    _caching("prefix/reset", "a reset while blocks are in use", "B16", "reset"),
    _caching("prefix/events", "events that do not add up to the index", "B17", "events"),
    _caching(
        "prefix/comes_back",
        "a preempted request computes again what is still cached",
        "B14",
        "comes_back",
    ),
    ManagerCase(
        "prefix/collision_before_a_window",
        "a digest stands for another's contents once its block is gone",
        "B9",
        "collision_before_a_window",
        needs=("sliding window", "prefix caching"),
    ),
    _caching(
        "prefix/collision_forgotten",
        "a digest stands for ever for what nobody holds any more",
        "B9",
        "collision_forgotten",
    ),
    ManagerCase(
        "ranks/fewest_blocks",
        "a rank is given a block that it has not got",
        "B18",
        "fewest_blocks",
        needs=("ranks",),
    ),
    ManagerCase(
        "blocks/at_work",
        "a request reads what was not written for it",
        "B8",
        "at_work",
        needs=tuple(sorted(EVERYTHING)),
    ),
)
"""All cases."""
