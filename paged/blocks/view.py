"""What can be asked of a manager. Nothing here changes anything."""

from collections.abc import Hashable

from paged.blocks import admission, checks, growth
from paged.blocks.core import Core
from paged.blocks.gauges import stats_of
from paged.blocks.groups import Group
from paged.blocks.hashing import Prompt
from paged.blocks.holdings import Holding
from paged.blocks.keys import Image
from paged.blocks.stats import Stats


class ManagerView:
    """A manager's state, to be read. Any thread may ask, and gets no answer that is torn from a
    change under way only where the writer asks itself."""

    _core: Core
    _block_size: int

    @property
    def num_blocks(self) -> int:
        """Size of the pool, the null block included."""
        return self._core.pool.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens per block, unless a group says otherwise."""
        return self._block_size

    @property
    def groups(self) -> tuple[Group, ...]:
        """Kinds of layers."""
        return self._core.groups

    @property
    def num_free_blocks(self) -> int:
        """Blocks that could be given out; the null block is none of them."""
        return self._core.pool.num_free

    @property
    def num_free_host_blocks(self) -> int:
        """Blocks on the host that could be given out."""
        return 0 if self._core.host is None else self._core.host.pool.num_free

    @property
    def nbytes(self) -> int:
        """Bytes of bookkeeping for the pool's blocks, without the index's dictionaries."""
        index = self._core.index
        return self._core.pool.nbytes + (0 if index is None else index.nbytes)

    def block_ids(self, request_id: Hashable, group: int = 0) -> list[int]:
        """A request's blocks in the order of its tokens; the null block for those given back.

        Raises:
            ValueError: no such request, or no such group.
        """
        holding = self._core.holding(request_id)
        if group not in range(len(self._core.groups)):
            raise ValueError(f"group: got {group!r}, expected 0 to {len(self._core.groups) - 1}")
        return holding.tables[group].tolist()

    def num_tokens(self, request_id: Hashable) -> int:
        """Tokens that a request has slots for, drafts included.

        Raises:
            ValueError: no such request.
        """
        return int(self._core.rows.num_tokens[self._core.holding(request_id).row])

    def num_committed(self, request_id: Hashable) -> int:
        """Leading tokens of a request that are known and computed.

        Raises:
            ValueError: no such request.
        """
        return int(self._core.rows.committed[self._core.holding(request_id).row])

    def row(self, request_id: Hashable) -> int:
        """A request's row in a batch; its own until it is freed or swapped out.

        Raises:
            ValueError: no such request.
        """
        return self._core.holding(request_id).row

    def num_blocks_needed(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` tokens fills, over all groups.

        Raises:
            ValueError: `num_tokens` is not an integer of at least 0.
        """
        num_tokens = checks.integer("num_tokens", num_tokens, at_least=0)
        return sum(group.num_blocks(num_tokens) for group in self._core.groups)

    def fits(self, num_tokens: int, chunk: int | None = None) -> bool:
        """Whether the pool, if all of it were free, would hold a sequence of `num_tokens` tokens.

        A request that does not fit waits for ever: refuse it on arrival.

        Args:
            num_tokens: its tokens at its end.
            chunk: tokens that get slots at once, where they do not all get them at admission:
                what lies before a window is then given back in between.

        Raises:
            ValueError: not integers of at least 0 and 1.
        """
        num_tokens = checks.integer("num_tokens", num_tokens, at_least=0)
        chunk = checked_chunk(chunk)
        return admission.peak_blocks(self._core, num_tokens, chunk) <= self.num_blocks - 1

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether `allocate_slots` for a new request of `num_tokens` tokens would succeed now.

        Raises:
            ValueError: `num_tokens` is not an integer of at least 1.
        """
        num_tokens = checks.integer("num_tokens", num_tokens, at_least=1)
        return admission.can_admit(self._core, None, num_tokens, None)

    def can_admit(self, prompt: Prompt, chunk: int | None = None, *, spare: int = 0) -> bool:
        """Whether `admit` with the same prompt would succeed now.

        Args:
            prompt: as for `admit`.
            chunk: as for `admit`.
            spare: blocks that would have to be left free, where that is more than the watermark.

        Raises:
            ValueError: a prompt hashed otherwise, or `chunk` is not an integer of at least 1 or
                `spare` of at least 0.
        """
        self._require_own(prompt)
        chunk = checked_chunk(chunk)
        spare = checks.integer("spare", spare, at_least=0)
        return admission.can_admit(self._core, prompt, len(prompt), chunk, spare)

    def can_append(self, request_id: Hashable, num_tokens: int = 1, *, drafts: int = 0) -> bool:
        """Whether `append_slots` with the same arguments would succeed now.

        Raises:
            ValueError: as `append_slots`.
        """
        ask = self._ask(request_id, num_tokens, drafts)
        return growth.plan(self._core, [ask]).num_blocks <= self._core.pool.num_free

    def num_cached_tokens(self, prompt: Prompt) -> int:
        """Leading tokens of a prompt that `admit` would not have computed again.

        Raises:
            ValueError: a prompt hashed otherwise than this manager does.
        """
        self._require_own(prompt)
        hit = admission.find_hit(self._core, prompt)
        return hit.num_tokens + hit.num_copied

    @staticmethod
    def image(digest: bytes, start: int, length: int) -> Image:
        """Where an image stands among a prompt's tokens, and which it is."""
        return Image(digest, start, length)

    def stats(self) -> Stats:
        """Counters, and how full the pool is."""
        return stats_of(self._core)

    def _require_own(self, prompt: Prompt) -> None:
        if not isinstance(prompt, Prompt):
            raise ValueError(f"prompt: got {type(prompt).__name__}, expected what `prompt` made")
        if prompt.hasher != self._core.hasher:
            raise ValueError("prompt: got one hashed otherwise than this manager does")

    def _ask(self, request_id: Hashable, num_tokens: int, drafts: int) -> tuple[Holding, int, int]:
        """(holding, tokens now, tokens then) of an append, checked."""
        holding = self._core.holding(request_id)
        num_tokens = checks.integer("num_tokens", num_tokens, at_least=0 if drafts else 1)
        drafts = checks.integer("drafts", drafts, at_least=0)
        pending = int(self._core.rows.num_drafts[holding.row])
        if pending:
            raise ValueError(
                f"request_id: got {request_id!r} with {pending} draft(s), expected them accepted "
                "or rejected first"
            )
        now = int(self._core.rows.num_tokens[holding.row])
        return holding, now, now + num_tokens + drafts


def checked_chunk(chunk: int | None) -> int | None:
    """Tokens that get slots at once.

    Raises:
        ValueError: neither None nor an integer of at least 1.
    """
    return None if chunk is None else checks.integer("chunk", chunk, at_least=1)
