"""The manager: blocks for each request's tokens. A facade over the operations beside it."""

import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from paged.blocks import admission, checks, committing, core, growth, sharing, swapping
from paged.blocks.admission import Admission
from paged.blocks.building import build_core
from paged.blocks.copies import CopyOrders
from paged.blocks.errors import WrongThread
from paged.blocks.events import Event
from paged.blocks.groups import Group, as_groups
from paged.blocks.growth import NO_CHANGES, TableChanges
from paged.blocks.hashing import HashFunction, Prompt
from paged.blocks.integrity import check_integrity
from paged.blocks.keys import CacheKeys, Image
from paged.blocks.snapshot import restored, snapshot_of
from paged.blocks.view import ManagerView, checked_chunk


class KVCacheManager(ManagerView):
    """Gives each request blocks for its tokens, from one pool; docs/blocks.md says how to use it.

    Token t of a request lies in its block t // block_size at offset t % block_size, and a request
    holds exactly the blocks that its tokens need.

    A call that raises has changed nothing: no table, no reference count, no order of reuse. The
    thread that first changes something is the one writer; others are refused.

    Args:
        num_blocks: size of the pool, the null block included; at least 2.
        block_size: tokens per block.
        groups: kinds of layers, as `Group` or its arguments (`block_size` by default the
            manager's); one of full attention by default.
        prefix_caching: whether full blocks can be found by what they hold.
        hash: "sha256"; or "xxhash" or a function from bytes to 1 to 32 bytes, always as many, which
            are not trusted: what was hashed is then kept and compared.
        partial_tails: whether a block that begins as a prompt goes on is copied for its first
            tokens; for one group only. Off by default: docs/blocks.md has what it brings and costs.
        host_blocks: blocks on the host to swap to.
        watermark: blocks that an admission leaves free for those that run.
        events: whether the history of the hash index is kept for `take_events`.

    Raises:
        ValueError: an argument out of range, or num_blocks * block_size of 2**31 or more.
    """

    features = frozenset(
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
    """What there is beyond blocks for tokens, in the words of the conformance cases."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        groups: Sequence[Group | Mapping[str, Any]] | None = None,
        prefix_caching: bool = True,
        hash: str | HashFunction = "sha256",
        partial_tails: bool = False,
        host_blocks: int = 0,
        watermark: int = 0,
        events: bool = False,
    ) -> None:
        self._writer: int | None = None
        self._block_size = checks.integer(
            "block_size", block_size, at_least=1, at_most=checks.MAX_SLOTS - 1
        )
        self._core = build_core(
            num_blocks,
            as_groups(self._block_size, groups),
            prefix_caching=prefix_caching,
            hash=hash,
            partial_tails=partial_tails,
            host_blocks=host_blocks,
            watermark=watermark,
            events=events,
        )

    @classmethod
    def for_ranks(
        cls, num_blocks_of_ranks: Iterable[int], block_size: int, **options: Any
    ) -> "KVCacheManager":
        """A manager for ranks that hold the same blocks: as many as the poorest of them has.

        Raises:
            ValueError: no rank, or as the class itself.
        """
        counts = list(num_blocks_of_ranks)
        if not counts:
            raise ValueError("num_blocks_of_ranks: got none, expected at least one rank")
        return cls(min(counts), block_size, **options)

    def prompt(
        self,
        token_ids: Sequence[int] | Int32[np.ndarray, " tokens"],
        *,
        adapter: str | None = None,
        salt: str | None = None,
        images: Sequence[Image] = (),
    ) -> Prompt:
        """Hash a prompt, once for as often as it is asked about; changes nothing.

        Args:
            token_ids: at least one, each from 0 to 2**31 - 1.
            adapter: name of the adapter that computes it.
            salt: secret of the tenant: only requests with the same one share blocks.
            images: where images stand among the tokens.

        Raises:
            ValueError: an argument out of range.
        """
        return Prompt.make(self._core.hasher, token_ids, CacheKeys(adapter, salt, tuple(images)))

    def admit(self, request_id: Hashable, prompt: Prompt, *, chunk: int | None = None) -> Admission:
        """Give a new request what is cached of its prompt, and blocks for the rest.

        Args:
            request_id: a new one.
            prompt: its tokens.
            chunk: tokens that get slots now beside the cached ones; all by default. The others
                get theirs by `append_slots`.

        Raises:
            NeverFits: it needs more blocks than the pool has.
            OutOfBlocks: too few are free now.
            ValueError: the request holds blocks already, a prompt hashed otherwise, or `chunk` is
                not an integer of at least 1.
        """
        self._require_writer()
        self._core.require_new(request_id)
        self._require_own(prompt)
        chunk = checked_chunk(chunk)
        return admission.admit(self._core, request_id, prompt, len(prompt), chunk)

    def allocate_slots(self, request_id: Hashable, num_tokens: int) -> list[int]:
        """Blocks for a new request whose tokens nobody tells: none of them is ever cached.

        Returns:
            The ids of the first group's blocks; the others' are in `block_ids`.

        Raises:
            NeverFits: it needs more blocks than the pool has.
            OutOfBlocks: too few blocks are free.
            ValueError: the request holds blocks already, or `num_tokens` is not an integer of at
                least 1.
        """
        self._require_writer()
        self._core.require_new(request_id)
        num_tokens = checks.integer("num_tokens", num_tokens, at_least=1)
        return admission.admit(self._core, request_id, None, num_tokens, None).block_ids[0]

    def commit_prompt(self, request_id: Hashable, num_tokens: int) -> None:
        """The first `num_tokens` tokens of a request's prompt are computed, or the coming step does
        it: full blocks among them can be found from now on.

        Raises:
            ValueError: no such request, it came without token ids, or fewer tokens than before or
                more than its prompt and slots have.
        """
        self._require_writer()
        holding = self._core.holding(request_id)
        num_tokens = checks.integer("num_tokens", num_tokens, at_least=0)
        committing.commit_prompt(self._core, holding, num_tokens)

    def commit(self, request_id: Hashable, token_ids: Sequence[int]) -> None:
        """A request's next tokens, after its prompt, are these, and computed likewise.

        Raises:
            ValueError: no such request, a prompt that is not all computed, or more tokens than
                have slots; slots of drafts do not count.
        """
        self._require_writer()
        holding = self._core.holding(request_id)
        tokens = checks.token_ids("token_ids", token_ids)
        committing.commit_tokens(self._core, holding, tokens)

    def append_slots(
        self, request_id: Hashable, num_tokens: int = 1, *, drafts: int = 0
    ) -> list[int]:
        """Make room for a request's next tokens.

        Where the last block is shared with a fork, a copy takes its place: see `take_copies`.

        Args:
            request_id: a request on the device.
            num_tokens: tokens that stay.
            drafts: tokens after them that `accept` decides about.

        Returns:
            Ids of the blocks added to the first group's table, in the order of the sequence; none
            where the last block has room.

        Raises:
            OutOfBlocks: too few blocks are free.
            ValueError: no such request, drafts that nobody decided about, or numbers that are not
                integers of at least 1, or 0 for drafts.
        """
        self._require_writer()
        holding, now, then = self._ask(request_id, num_tokens, drafts)
        before = len(holding.tables[0])
        growth.grow(self._core, [(holding, now, then)])
        self._core.rows.num_tokens[holding.row] = then
        if drafts:
            self._core.rows.num_drafts[holding.row] = int(drafts)
            # A batch has to look at this row, and refuses it.
            self._core.rows.limit[holding.row] = 0
        return holding.tables[0][before:].tolist()

    def append_batch(
        self,
        rows: Int64[np.ndarray, " batch"],
        token_ids: Int32[np.ndarray, " batch"] | None = None,
    ) -> TableChanges:
        """One more token for each of many requests: a decode step, in one call.

        Args:
            rows: distinct rows, as `row` gives them.
            token_ids: the tokens, where they are known: they are committed as well.

        Returns:
            What was written to tables.

        Raises:
            OutOfBlocks: too few blocks are free for all of them.
            ValueError: rows that are not in use, named twice, or with drafts; tokens of rows whose
                earlier tokens are not committed.
        """
        self._require_writer()
        numbers = self._core.rows
        rows, before = numbers.checked(rows)
        hashed = None
        if token_ids is not None:
            token_ids = checks.token_ids("token_ids", token_ids)
            committing.check_batch(self._core, rows, before, token_ids)
            hashed = committing.hash_batch(self._core, rows, before, token_ids)
        changes = NO_CHANGES
        slow = (before >= numbers.limit[rows]).nonzero()[0]
        if slow.size:
            changes = growth.grow_batch(self._core, rows[slow], before[slow])
        numbers.num_tokens[rows] = before + 1
        if token_ids is not None and hashed is not None:
            committing.commit_batch(self._core, rows, before, token_ids, hashed)
        return changes

    def commit_batch(
        self, rows: Int64[np.ndarray, " batch"], token_ids: Int32[np.ndarray, " batch"]
    ) -> None:
        """The next token of each of many requests is this, and computed.

        Raises:
            ValueError: as `append_batch`, or a row without a slot for it.
        """
        self._require_writer()
        numbers = self._core.rows
        rows, _ = numbers.checked(rows)
        tokens = checks.token_ids("token_ids", token_ids)
        committing.check_late_batch(self._core, rows, tokens)
        before = numbers.committed[rows]
        hashed = committing.hash_batch(self._core, rows, before, tokens)
        committing.commit_batch(self._core, rows, before, tokens, hashed)

    def accept(self, request_id: Hashable, num_drafts: int) -> None:
        """Keep the first `num_drafts` of a request's drafts; the others give their slots back, and
        the blocks that are left empty.

        Raises:
            ValueError: no such request, or not an integer from 0 to its drafts.
        """
        self._require_writer()
        holding, numbers = self._core.holding(request_id), self._core.rows
        num_drafts = checks.integer("num_drafts", num_drafts, at_least=0)
        pending = int(numbers.num_drafts[holding.row])
        if num_drafts > pending:
            raise ValueError(f"num_drafts: got {num_drafts}, expected at most {pending}")
        kept = int(numbers.num_tokens[holding.row]) - pending + num_drafts
        numbers.num_drafts[holding.row] = 0
        growth.shrink(self._core, holding, kept)

    def fork(self, request_id: Hashable, children: Sequence[Hashable]) -> list[int]:
        """Requests that go on from where one stands (n > 1, best of, beams); all blocks are shared.

        Returns:
            The children's rows.

        Raises:
            ValueError: no such request, drafts, tokens that are not committed, or a child that is
                there already or named twice, or a string in place of a sequence.
        """
        self._require_writer()
        return sharing.fork(self._core, self._core.holding(request_id), children)

    def free(self, request_id: Hashable) -> None:
        """Give back all that a request holds, its last block to be reused first.

        What is cached of it stays to be found until its blocks are reused.

        Raises:
            ValueError: no such request.
        """
        self._require_writer()
        checks.hashable("request_id", request_id)
        if self._core.host is not None and request_id in self._core.host.requests:
            swapping.drop(self._core, request_id)
        else:
            core.free(self._core, self._core.holding(request_id))

    def swap_out(self, request_id: Hashable) -> None:
        """Move a request to the host. It must not be in the coming step.

        Raises:
            OutOfBlocks: too few blocks of the host are free.
            ValueError: no such request, no host pool, drafts, or copies of it not taken yet.
        """
        self._require_writer()
        swapping.swap_out(self._core, self._core.holding(request_id))

    def swap_in(self, request_id: Hashable) -> Admission:
        """Bring a request back from the host; it has a new row and new blocks.

        Raises:
            OutOfBlocks: too few blocks are free.
            ValueError: no host pool, or the request is not on it.
        """
        self._require_writer()
        return swapping.swap_in(self._core, request_id)

    def take_copies(self) -> CopyOrders:
        """The copies to carry out before the next step. Call it once a step, before dispatch."""
        self._require_writer()
        if self._core.host is not None:
            self._core.host.settle()
        if self._core.partial_tails is not None:
            self._core.partial_tails.settle()
        return self._core.copies.take()

    def take_events(self) -> list[Event]:
        """What happened to the hash index since the last call, oldest first."""
        self._require_writer()
        return self._core.log.take()

    def begin_step(self) -> int:
        """A step is dispatched: what is given up from now on waits until it has ended.

        Only for steps that may still read while later ones write; where they run in the order of
        dispatch nobody needs to say.
        """
        self._require_writer()
        return self._core.pool.begin_step()

    def end_step(self, step: int) -> None:
        """A step has ended, and so have all before it.

        Raises:
            ValueError: no step in flight has that number.
        """
        self._require_writer()
        self._core.pool.end_step(step)

    def reset(self) -> None:
        """Forget what is cached, as after weights have changed or a step has failed.

        Raises:
            ValueError: requests hold blocks, or steps are in flight.
        """
        self._require_writer()
        sharing.reset(self._core)

    def adopt(self) -> None:
        """Make the calling thread the one writer; no other may be in a call."""
        self._writer = threading.get_ident()

    def snapshot(self) -> dict[str, Any]:
        """All of the state, as JSON can hold it; not while steps are in flight or copies pending.

        Raises:
            ValueError: then, or where a request's id is neither a string nor an integer.
        """
        return snapshot_of(self._core, self._block_size)

    @classmethod
    def restore(
        cls, snapshot: Mapping[str, Any], hash: str | HashFunction | None = None
    ) -> "KVCacheManager":
        """A manager as it was when `snapshot` was taken.

        Args:
            snapshot: what `snapshot` returned.
            hash: the function, where it was one.

        Raises:
            ValueError: it is no snapshot, or contradicts itself.
        """
        return restored(cls, snapshot, hash)

    def check_integrity(self) -> None:
        """Compare all bookkeeping with itself; walks the whole pool.

        Raises:
            IntegrityError: naming the invariant and the numbers that disagree.
        """
        check_integrity(self._core)

    def _require_writer(self) -> None:
        caller = threading.get_ident()
        if self._writer is None:
            self._writer = caller
        elif self._writer != caller:
            raise WrongThread(
                f"thread {caller} called, expected thread {self._writer}, the one writer; `adopt` "
                "makes another the writer"
            )
