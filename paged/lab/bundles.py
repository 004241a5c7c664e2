"""Reads what libtpu's dump says of one kernel: bundles of each loop, slots used, spills, VMEM.

A bundle is one VLIW instruction word, one cycle if nothing stalls. Two listings are read:

    scheduled   packed-bundles-post-ra: the schedule. Waits for latency are empty bundles, so
                that its length is the cycles of a run without stalls.
    issued      final_bundles: what is fetched, once most waits became delays of other bundles.
                A floor: no schedule of these instructions is shorter.

A loop's own counts leave out the loops inside it. Predicated regions count as taken; how much of
a loop its own forward branches could skip is told beside.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

_BUNDLE = re.compile(r"^\s*(?:0x)?[0-9a-f]+\s+(?:[A-Z]{2})?\s*:\s*>*\s*(\{.*)$")
# The schedule's listing names the bundle that a branch goes to, the issued one its region.
_BRANCH = re.compile(r"\bsbr\.rel\b[^;]*?target (?:bundleno = (\d+)|= \$region(\d+))")
_REGION = re.compile(r"\b(?:Start|empty) region (\d+)")
_COPY = re.compile(r"= dma\.(?!done)\w+")
_COMMENT = re.compile(r"/\*.*?\*/")
_ALLOCATION = re.compile(r"space=vmem, size = (0x[0-9a-f]+|\d+), offset = (0x[0-9a-f]+|\d+)")
_NAMED_LOOP = re.compile(r"^( *)(?:loop: start=(\S+), step=(\S+), limit=(\S+)|// While loop)$")
# A branch takes effect after the bundles that follow it: a loop ends with them.
_BRANCH_DELAY = 4
_FILL, _SPILL = "VLOAD:FILL", "VSTORE:SPILL"
_MATMUL = ("MATMUL", "MATPUSH")


@dataclass(frozen=True, slots=True)
class Bundle:
    """One bundle of a listing.

    Attributes:
        text: what it does.
        jumps: bundles that its branches go to.
    """

    text: str
    jumps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop's body without the loops inside it; entry 0 is the code outside all loops.

    Attributes:
        depth: 0 outside all loops, 1 for an outermost loop.
        parent: index of the loop around it, None for entry 0.
        scheduled: bundles of the schedule, empty ones included.
        issued: bundles fetched.
        skippable: of the scheduled ones, those that its forward branches may jump over.
        slots: uses of each kind of slot.
        bound_slot: the kind of slot that would be full first.
        bound: bundles that this kind alone needs: what a perfect scheduler could reach.
        fills: vector registers read back from where they were spilled.
        spills: vector registers spilled.
        copies: copies between memories started.
    """

    depth: int
    parent: int | None
    scheduled: int
    issued: int
    skippable: int
    slots: dict[str, int]
    bound_slot: str
    bound: int
    fills: int
    spills: int
    copies: int

    @property
    def has_matmul(self) -> bool:
        """Whether its own body has matrix products."""
        return any(self.slots.get(slot, 0) for slot in _MATMUL)


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """One kernel's counts.

    Attributes:
        name: the instruction of XLA's program that it is.
        capacity: slots of each kind in a bundle.
        loops: program order; entry 0 is the code outside all loops.
        trips: for each loop how often its body runs each time it is entered, where the compiler
            knows; 1 for entry 0.
        vmem_bytes: vector memory, spills included.
    """

    name: str
    capacity: dict[str, int]
    loops: tuple[Loop, ...]
    trips: tuple[int | None, ...]
    vmem_bytes: int

    @property
    def scheduled(self) -> int:
        """Bundles of the schedule, each loop's body once."""
        return sum(loop.scheduled for loop in self.loops)

    @property
    def issued(self) -> int:
        """Bundles fetched, each loop's body once."""
        return sum(loop.issued for loop in self.loops)

    @property
    def fills(self) -> int:
        """Fills, each loop's body once."""
        return sum(loop.fills for loop in self.loops)

    @property
    def spills(self) -> int:
        """Spills, each loop's body once."""
        return sum(loop.spills for loop in self.loops)


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """The files of a dump that describe one kernel."""

    name: str
    scheduled: Path
    issued: Path
    utilization: Path
    original: Path | None = None
    allocations: Path | None = None


def read_kernel(files: KernelFiles) -> KernelCounts:
    """Counts of one kernel.

    Raises:
        ValueError: the listings disagree with each other, naming the file.
    """
    scheduled = parse_bundles(files.scheduled.read_text(errors="replace"))
    issued = parse_bundles(files.issued.read_text(errors="replace"))
    capacity, used = parse_utilization(files.utilization.read_text())
    if len(used) != len(issued):
        raise ValueError(
            f"{files.utilization.name}: {len(used)} rows for {len(issued)} bundles issued"
        )
    nest, issued_nest = find_loops(scheduled), find_loops(issued)
    if [(b.depth, b.parent) for b in nest] != [(b.depth, b.parent) for b in issued_nest]:
        raise ValueError(f"{files.issued.name}: its loops are not those of the schedule")
    loops = tuple(
        _loop(body, issued_body.members, scheduled, issued, capacity, used)
        for body, issued_body in zip(nest, issued_nest, strict=True)
    )
    original = "" if files.original is None else files.original.read_text(errors="replace")
    vmem = "" if files.allocations is None else files.allocations.read_text(errors="replace")
    depths = [body.depth for body in nest]
    return KernelCounts(files.name, capacity, loops, static_trips(original, depths), vmem_use(vmem))


def parse_bundles(text: str) -> list[Bundle]:
    """The bundles of a listing, in order."""
    lines = [found[1] for line in text.splitlines() if (found := _BUNDLE.match(line))]
    starts: dict[str, int] = {}
    for index, line in enumerate(lines):
        for region in _REGION.findall(line):
            starts.setdefault(region, index)
    bundles: list[Bundle] = []
    for line in lines:
        jumps: list[int] = []
        for number, region in _BRANCH.findall(line):
            # A region that was emptied may have lost its mark, never a loop's: `read_kernel` sees
            # that the loops are those of the schedule, which names bundles.
            if number or region in starts:
                jumps.append(int(number) if number else starts[region])
        bundles.append(Bundle(line, tuple(jumps)))
    return bundles


def parse_utilization(text: str) -> tuple[dict[str, int], list[dict[str, int]]]:
    """Slots of each kind in a bundle, and those that each issued bundle uses."""
    lines = [line for line in text.splitlines() if line.strip()]
    names = [name.strip() for name in lines[1].split(",")]

    def row(line: str) -> dict[str, int]:
        return dict(zip(names, map(int, line.split()), strict=True))

    start = next(i for i, line in enumerate(lines) if line.startswith("== UTILIZATION")) + 1
    return row(lines[2]), [row(line) for line in lines[start:]]


@dataclass(slots=True)
class Body:
    """Which bundles are a loop's own."""

    depth: int
    parent: int | None
    members: list[int]


def find_loops(bundles: list[Bundle]) -> list[Body]:
    """The loops of a listing in program order, entry 0 being the code outside all of them.

    A loop reaches from where a backward branch goes to the last such branch and the bundles that
    run before it takes effect. The marks of depth in the listing are of instructions, which the
    scheduler moves: they do not tell where a loop ends.
    """
    ends: dict[int, int] = {}
    for index, bundle in enumerate(bundles):
        for start in bundle.jumps:
            if start <= index:
                last = min(index + _BRANCH_DELAY, len(bundles) - 1)
                ends[start] = max(last, ends.get(start, 0))
    loops = [Body(0, None, [])]
    open_loops = [(len(bundles), 0)]
    for index in range(len(bundles)):
        while index > open_loops[-1][0]:
            open_loops.pop()
        if index in ends:
            loops.append(Body(len(open_loops), open_loops[-1][1], []))
            open_loops.append((ends[index], len(loops) - 1))
        loops[open_loops[-1][1]].members.append(index)
    return loops


def static_trips(original: str, depths: list[int]) -> tuple[int | None, ...]:
    """How often each loop of the schedule runs when entered, from the unoptimised listing.

    It names each loop's bounds where they are static. Loops of one trip are gone from the
    schedule; where the others do not nest as the schedule's, nothing is known.
    """
    found: list[tuple[int, int | None]] = []
    around: list[tuple[int, bool]] = []
    for line in original.splitlines():
        if not (match := _NAMED_LOOP.match(line)):
            continue
        indent = len(match[1])
        while around and around[-1][0] >= indent:
            around.pop()
        trips = None if match[2] is None else _trips(match[2], match[3], match[4])
        around.append((indent, trips != 1))
        if trips != 1:
            found.append((sum(counts for _, counts in around), trips))
    if [depth for depth, _ in found] != depths[1:]:
        return (1, *(None for _ in depths[1:]))
    return (1, *(trips for _, trips in found))


def _trips(start: str, step: str, limit: str) -> int | None:
    try:
        first, stride, last = (int(value.rstrip(","), 0) for value in (start, step, limit))
    except ValueError:  # a register
        return None
    return max(0, -(-(last - first) // stride)) if stride else None


def vmem_use(listing: str) -> int:
    """Bytes of vector memory up to the end of the last allocation, spills included."""
    return max((int(s, 0) + int(o, 0) for s, o in _ALLOCATION.findall(listing)), default=0)


def _loop(
    body: Body,
    issued_members: list[int],
    scheduled: list[Bundle],
    issued: list[Bundle],
    capacity: dict[str, int],
    used: list[dict[str, int]],
) -> Loop:
    slots = {name: sum(used[i][name] for i in issued_members) for name in capacity}
    # Fills and spills are loads and stores, counted there too.
    need = {
        name: math.ceil(count / capacity[name]) if capacity[name] else 0
        for name, count in slots.items()
        if name not in (_FILL, _SPILL)
    }
    tightest = max(need, key=lambda name: need[name])
    return Loop(
        depth=body.depth,
        parent=body.parent,
        scheduled=len(body.members),
        issued=len(issued_members),
        skippable=_skippable(scheduled, body),
        slots=slots,
        bound_slot=tightest,
        bound=need[tightest],
        fills=slots.get(_FILL, 0),
        spills=slots.get(_SPILL, 0),
        copies=sum(len(_COPY.findall(_COMMENT.sub("", issued[i].text))) for i in issued_members),
    )


def _skippable(bundles: list[Bundle], body: Body) -> int:
    skipped: set[int] = set()
    for index in body.members:
        for end in bundles[index].jumps:
            skipped.update(range(index + 1 + _BRANCH_DELAY, end))
    return len(skipped.intersection(body.members))
