"""The manager: which blocks each request holds, for how many tokens."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from paged.blocks import checks
from paged.blocks.errors import expect_equal
from paged.blocks.pool import BlockPool


@dataclass(slots=True)
class _Holding:
    """What one request holds. Blocks are only ever added at the end: no id is rewritten."""

    block_ids: list[int]
    num_tokens: int


class KVCacheManager:
    """Gives each request blocks for its tokens, from one pool.

    Token t of a request lies in its block t // block_size at offset t % block_size, and a request
    holds exactly the blocks that its tokens need.

    A call that raises has changed nothing: no table, no reference count, no order of reuse.

    Args:
        num_blocks: size of the pool, the null block included; at least 2.
        block_size: tokens per block.

    Raises:
        ValueError: an argument out of range, or num_blocks * block_size of 2**31 or more.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        num_blocks = checks.integer("num_blocks", num_blocks, at_least=2)
        self._block_size = checks.integer("block_size", block_size, at_least=1)
        checks.slots_fit("num_blocks", num_blocks, self._block_size)
        self._pool = BlockPool(num_blocks)
        self._requests: dict[Hashable, _Holding] = {}

    @property
    def num_blocks(self) -> int:
        """Size of the pool, the null block included."""
        return self._pool.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._block_size

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds; the null block is none of them."""
        return self._pool.num_free

    def num_blocks_needed(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` tokens fills, the last one perhaps in part.

        Raises:
            ValueError: `num_tokens` is not an integer of at least 0.
        """
        return -(-checks.integer("num_tokens", num_tokens, at_least=0) // self._block_size)

    def fits(self, num_tokens: int) -> bool:
        """Whether the pool, if all of it were free, would hold a sequence of `num_tokens` tokens.

        A request that does not fit waits for ever: refuse it on arrival.

        Raises:
            ValueError: `num_tokens` is not an integer of at least 0.
        """
        return self.num_blocks_needed(num_tokens) <= self._pool.num_blocks - 1

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether `allocate_slots` for a new request of `num_tokens` tokens would succeed now.

        Raises:
            ValueError: `num_tokens` is not an integer of at least 1.
        """
        num_tokens = checks.integer("num_tokens", num_tokens, at_least=1)
        return self.num_blocks_needed(num_tokens) <= self._pool.num_free

    def can_append(self, request_id: Hashable, num_tokens: int = 1) -> bool:
        """Whether `append_slots` with the same arguments would succeed now.

        Raises:
            ValueError: no such request, or `num_tokens` is not an integer of at least 1.
        """
        return self._num_blocks_to_add(request_id, num_tokens) <= self._pool.num_free

    def allocate_slots(self, request_id: Hashable, num_tokens: int) -> list[int]:
        """Take the blocks for a new request's first `num_tokens` tokens; returns their ids.

        Raises:
            OutOfBlocks: too few blocks are free. Where `fits` is false no waiting helps.
            ValueError: the request holds blocks already, or `num_tokens` is not an integer of at
                least 1.
        """
        if request_id in self._requests:
            raise ValueError(
                f"request_id: got {request_id!r}, which holds "
                f"{len(self._requests[request_id].block_ids)} block(s), expected a new one"
            )
        num_tokens = checks.integer("num_tokens", num_tokens, at_least=1)
        block_ids = self._pool.allocate(self.num_blocks_needed(num_tokens))
        self._requests[request_id] = _Holding(block_ids, num_tokens)
        return block_ids.copy()

    def append_slots(self, request_id: Hashable, num_tokens: int = 1) -> list[int]:
        """Make room for a request's next `num_tokens` tokens; returns the ids of added blocks.

        Returns:
            Ids in the order of the sequence; none where the last block has room.

        Raises:
            OutOfBlocks: too few blocks are free.
            ValueError: no such request, or `num_tokens` is not an integer of at least 1.
        """
        added = self._pool.allocate(self._num_blocks_to_add(request_id, num_tokens))
        holding = self._requests[request_id]
        holding.block_ids.extend(added)
        holding.num_tokens += int(num_tokens)
        return added

    def free(self, request_id: Hashable) -> None:
        """Give back all that a request holds, its last block to be reused first.

        Raises:
            ValueError: no such request.
        """
        self._pool.free(reversed(self._holding(request_id).block_ids))
        del self._requests[request_id]

    def block_ids(self, request_id: Hashable) -> list[int]:
        """A request's blocks, in the order of its tokens.

        Raises:
            ValueError: no such request.
        """
        return self._holding(request_id).block_ids.copy()

    def num_tokens(self, request_id: Hashable) -> int:
        """Tokens that a request has slots for.

        Raises:
            ValueError: no such request.
        """
        return self._holding(request_id).num_tokens

    def check_integrity(self) -> None:
        """Compare the pool with itself and with what the requests hold; walks the whole pool.

        Raises:
            IntegrityError: naming the invariant and the two numbers that disagree.
        """
        self._pool.check_integrity()
        references: Counter[int] = Counter()
        for request_id, holding in self._requests.items():
            expect_equal(
                f"blocks of request {request_id!r} for its {holding.num_tokens} tokens",
                len(holding.block_ids),
                self.num_blocks_needed(holding.num_tokens),
            )
            expect_equal(
                f"distinct blocks of request {request_id!r}",
                len(set(holding.block_ids)),
                len(holding.block_ids),
            )
            references.update(holding.block_ids)
        for block in range(1, self._pool.num_blocks):
            expect_equal(
                f"reference count of block {block} against the requests that hold it",
                self._pool.ref_count(block),
                references.pop(block, 0),
            )
        expect_equal("blocks held that are not in the pool", sorted(references), [])

    def _holding(self, request_id: Hashable) -> _Holding:
        holding = self._requests.get(request_id)
        if holding is None:
            raise ValueError(
                f"request_id: got {request_id!r}, expected one of the {len(self._requests)} "
                "request(s) that hold blocks"
            )
        return holding

    def _num_blocks_to_add(self, request_id: Hashable, num_tokens: int) -> int:
        holding = self._holding(request_id)
        num_tokens = checks.integer("num_tokens", num_tokens, at_least=1)
        return self.num_blocks_needed(holding.num_tokens + num_tokens) - len(holding.block_ids)
