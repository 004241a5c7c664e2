"""Serving: a manager, a device, and a model of dictionaries that says what every slot must hold.

Each method does what a scheduler would, checks the outcome, and leaves it to `dispatch` to write
what was scheduled and to read back everything that every request can read. A step that is in
flight reads at its very end, so what it reads must stay as it was.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paged.conformance.managers.device import Device, numbers_of
from paged.conformance.managers.expect import expect


@dataclass(slots=True)
class _Request:
    """What the model knows of a request.

    `tokens` are all it has, of which `prompt` came with it, `slots` have slots, and the last
    `drafts` of those may be rejected.
    """

    tokens: list[int]
    tenant: str
    prompt: int
    slots: int
    done: int
    drafts: int = 0
    is_swapped: bool = False


@dataclass(slots=True)
class Serving:
    """A manager at work.

    Attributes:
        manager: under test.
        device: what it manages.
        groups: kind, size and block_size of each group, as the manager was made with.
        requests: the model.
    """

    manager: Any
    device: Any
    groups: Sequence[Mapping[str, Any]]
    requests: dict[Hashable, _Request] = field(default_factory=dict)
    _writes: list[tuple[Hashable, int, int]] = field(default_factory=list)
    _reads: deque[tuple[int, list[tuple[str, list[int], list[int]]]]] = field(default_factory=deque)

    @classmethod
    def of(
        cls,
        make: Callable[..., Any],
        num_blocks: int,
        groups: Sequence[Mapping[str, Any]],
        *,
        device: Callable[[int, int, int], Any] = Device,
        **options: Any,
    ) -> "Serving":
        """A manager of groups, the first of which says its block size."""
        size = groups[0]["block_size"]
        largest = max(group["block_size"] for group in groups)
        manager = make(num_blocks, size, groups=groups, **options)
        return cls(manager, device(num_blocks, options.get("host_blocks", 0), largest), groups)

    def running(self, is_ready: bool = False) -> list[Hashable]:
        """Requests on the device; ready ones have no draft and their whole prompt behind them."""
        return [
            name
            for name, request in self.requests.items()
            if not request.is_swapped
            and not (is_ready and (request.drafts or request.done < len(request.tokens)))
        ]

    def admit(
        self, name: Hashable, token_ids: Sequence[int], tenant: str = "", chunk: int | None = None
    ) -> bool:
        """A request comes; whether there was room."""
        prompt = self.manager.prompt(token_ids, salt=tenant or None)
        could = self.manager.can_admit(prompt, chunk)
        given = self._served(self.manager.admit, name, prompt, chunk=chunk)
        expect(f"can_admit({name!r})", could, given is not None)
        if given is None:
            return False
        cached = given.num_cached_tokens
        expect(
            f"whether {cached} cached of {len(prompt)} tokens leave one", cached < len(prompt), True
        )
        slots = len(prompt) if chunk is None else min(len(prompt), cached + chunk)
        self.requests[name] = _Request(list(token_ids), tenant, len(prompt), slots, cached)
        self._compute(name)
        return True

    def grow(
        self, name: Hashable, token_ids: Sequence[int] = (), drafts: Sequence[int] = ()
    ) -> bool:
        """More tokens for a request, or slots for more of its prompt; whether there was room."""
        self._start_over([name])
        request = self.requests[name]
        left = len(request.tokens) - request.slots
        count = len(token_ids) or min(left, 3)
        could = self.manager.can_append(name, count, drafts=len(drafts))
        given = self._served(self.manager.append_slots, name, count, drafts=len(drafts))
        expect(f"can_append({name!r})", could, given is not None)
        if given is None:
            return False
        request.tokens += [*token_ids, *drafts]
        request.slots += count + len(drafts)
        request.drafts = len(drafts)
        self._compute(name)
        return True

    def decode(self, names: Sequence[Hashable], token_ids: Sequence[int]) -> bool:
        """A token for each of several ready requests, in one call; whether there was room."""
        self._start_over(names)
        rows = [self.manager.row(name) for name in names]
        given = self._served(self.manager.append_batch, rows, list(token_ids))
        if given is None:
            return False
        for name, token in zip(names, token_ids, strict=True):
            request = self.requests[name]
            self._writes.append((name, request.done, request.done + 1))
            request.tokens.append(token)
            request.slots += 1
            request.done += 1
        tables = dict(zip(rows, names, strict=True))
        changes = (given.rows, given.groups, given.columns, given.blocks)
        for row, group, column, block in zip(*(part.tolist() for part in changes), strict=True):
            found = self.manager.block_ids(tables[row], group)[column]
            expect(f"block told for {tables[row]!r}, group {group}, column {column}", block, found)
        return True

    def accept(self, name: Hashable, count: int) -> None:
        """Some of a request's drafts are right."""
        self.dispatch()
        request = self.requests[name]
        rejected = request.drafts - count
        self.manager.accept(name, count)
        if rejected:
            del request.tokens[-rejected:]
        request.slots, request.drafts = len(request.tokens), 0
        self.manager.commit(name, request.tokens[request.done :])
        request.done = len(request.tokens)

    def fork(self, name: Hashable, children: Sequence[Hashable]) -> None:
        """Requests that go on from where one stands."""
        self.dispatch()
        self.manager.fork(name, children)
        parent = self.requests[name]
        for child in children:
            self.requests[child] = _Request(
                list(parent.tokens), parent.tenant, parent.prompt, parent.slots, parent.done
            )

    def free(self, name: Hashable) -> None:
        """A request is over, given up, or preempted."""
        self.dispatch()
        self.manager.free(name)
        del self.requests[name]

    def swap_out(self, name: Hashable) -> bool:
        """A request goes to the host; whether there was room."""
        self.dispatch()
        if self._served(self.manager.swap_out, name, gives=False) is None:
            return False
        self.requests[name].is_swapped = True
        return True

    def swap_in(self, name: Hashable) -> bool:
        """A request comes back; whether there was room."""
        if self._served(self.manager.swap_in, name) is None:
            return False
        self.requests[name].is_swapped = False
        return True

    def dispatch(self, announce: bool = False) -> None:
        """Copies, then writes, then everybody reads; announced, the step reads again at its end."""
        self.device.copy(self.manager.take_copies())
        for name, start, end in self._writes:
            request = self.requests[name]
            numbers = numbers_of(request.tenant, request.tokens)[start:end]
            for group in range(len(self.groups)):
                self.device.write(self._slots(name, group, start, end), numbers)
        self._writes.clear()
        reads = [read for name in self.running() for read in self._reads_of(name)]
        self._compare(reads)
        if announce:
            self._reads.append((self.manager.begin_step(), reads))

    def end_step(self) -> None:
        """The oldest step in flight has ended."""
        if self._reads:
            step, reads = self._reads.popleft()
            self._compare(reads)
            self.manager.end_step(step)

    def finish(self) -> None:
        """All requests go, all steps end: every block must be free."""
        for name in list(self.requests):
            self.free(name)
        while self._reads:
            self.end_step()
        self.dispatch()
        self.check()
        free = self.manager.num_free_blocks
        expect("free blocks when all have gone", free, len(self.device.blocks) - 1)
        if self.device.host.shape[0] > 1:
            free = self.manager.num_free_host_blocks
            expect("free blocks of the host when all have gone", free, len(self.device.host) - 1)

    def check(self) -> None:
        """The manager's own invariants, and its numbers against the model's."""
        check = getattr(self.manager, "check_integrity", None)
        if check is not None:
            check()
        for name in self.running():
            request = self.requests[name]
            expect(f"tokens of {name!r}", self.manager.num_tokens(name), request.slots)
            for group, kind in enumerate(self.groups):
                blocks = len(self.manager.block_ids(name, group))
                needed = -(-request.slots // kind["block_size"])
                expect(f"blocks of {name!r} in group {group}", blocks, needed)

    def _start_over(self, names: Sequence[Hashable]) -> None:
        """A step has one part of each request: another one is of the next step."""
        if any(name in names for name, _, _ in self._writes):
            self.dispatch()

    def _compute(self, name: Hashable) -> None:
        """Schedule all tokens of a request that have slots; those that stay are committed."""
        request = self.requests[name]
        self._writes.append((name, request.done, request.slots))
        end = request.slots - request.drafts
        if request.done < request.prompt:
            self.manager.commit_prompt(name, min(end, request.prompt))
        first = max(request.done, request.prompt)
        if end > first:
            self.manager.commit(name, request.tokens[first:end])
        request.done = end

    def _reads_of(self, name: Hashable) -> list[tuple[str, list[int], list[int]]]:
        """What a request's next query reads in each group: (what, slots, numbers)."""
        request = self.requests[name]
        numbers = numbers_of(request.tenant, request.tokens)
        reads = []
        for group, kind in enumerate(self.groups):
            first = first_read(kind, request.done)
            slots = self._slots(name, group, first, request.done)
            what = f"what request {name!r} reads in group {group} from position {first} on"
            reads.append((what, slots, numbers[first : request.done]))
        return reads

    def _slots(self, name: Hashable, group: int, start: int, end: int) -> list[int]:
        blocks = self.manager.block_ids(name, group)
        size, stride = self.groups[group]["block_size"], self.device.block_size
        return [blocks[place // size] * stride + place % size for place in range(start, end)]

    def _compare(self, reads: Sequence[tuple[str, list[int], list[int]]]) -> None:
        for what, slots, numbers in reads:
            expect(what, self.device.read(slots), numbers)

    def _served(
        self, call: Callable[..., Any], *arguments: Any, gives: bool = True, **named: Any
    ) -> Any:
        """What a call gave, True for one that gives nothing; None where there was no room."""
        free = self.manager.num_free_blocks
        tables = self._tables()
        try:
            given = call(*arguments, **named)
        except RuntimeError:
            expect("free blocks after a call that failed", self.manager.num_free_blocks, free)
            expect("tables after a call that failed", self._tables(), tables)
            return None
        return given if gives else True

    def _tables(self) -> list[Any]:
        groups = range(len(self.groups))
        return [[self.manager.block_ids(name, g) for g in groups] for name in self.running()]


def first_read(group: Mapping[str, Any], position: int) -> int:
    """The first position that a query reads; stated here once more, for nobody to copy."""
    size = group.get("size")
    if size is None:
        return 0
    if group["kind"] == "chunked":
        return position - position % size
    return max(0, position - (size - 1))
