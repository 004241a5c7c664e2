"""The rules that a verdict on a block manager may name, by their numbers in docs/conformance.md."""

from paged.conformance.rules import Rule

MANAGER_RULES: dict[str, Rule] = {
    f"B{number}": Rule(f"B{number}", text)
    for number, text in enumerate(
        (
            "block 0 is reserved: a fresh pool gives 1, 2, 3, ..., and free blocks do not count it",
            "allocation is all or nothing: a call that fails leaves no trace",
            "a hit block that is free counts as consumed when capacity is checked",
            "hits are full blocks, and leave at least one token to be computed",
            "freed blocks with a hash go to the end of the free list, tail first, others to the "
            "front",
            "eviction is least recently used, the tail of a prefix before its head",
            "a touched block leaves the free list, and each of its holders counts",
            "tables are append-only: no id is rewritten, and no block has two owners by accident",
            "a hash covers parent, tokens and tagged extra keys, and a collision gives nobody "
            "another's blocks",
            "blocks before a sliding window return to the pool once no step reads them",
            "a hit is a fixed point over groups, and no group evicts another's hit",
            "a fork shares all and copies the half-full last block once per writer but the last",
            "draft tokens are never cached, and rejected ones give their blocks back",
            "preemption frees everything, and the request can run again",
            "a prompt larger than the pool is refused at once",
            "reset refuses while blocks are in use; double free and an unknown request raise",
            "events are exactly the history of the hash index",
            "num_blocks is the minimum over ranks",
        ),
        start=1,
    )
}
"""By key."""
