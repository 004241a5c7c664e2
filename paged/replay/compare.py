"""The same requests, pool and clock for each policy."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from paged.replay.clock import StepTime
from paged.replay.contiguous import GUESSES, Contiguous
from paged.replay.heaps import power_of_two
from paged.replay.measure import Figures
from paged.replay.memory import Memory
from paged.replay.paging import Paged
from paged.replay.service import Limits, refuse, serve
from paged.replay.trace import Trace

POLICIES = (*GUESSES, "paged")
"""What can be compared, from the most wasteful on."""

BLOCK_SIZES = (1, 4, 8, 16, 32, 64, 128)
"""By default."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all policies have in common, and what each is told.

    Attributes:
        pool_slots: slots of the pool.
        max_len: slots of the longest request that the service accepts: what "max" reserves.
        heap: where contiguous allocation finds its stretches.
        watermark: of paged allocation; see `Paged`.
        time: of a step.
        limits: of a step.
    """

    pool_slots: int
    max_len: int
    heap: str = "buddy"
    watermark: float = 0.01
    time: StepTime = field(default_factory=StepTime)
    limits: Limits = field(default_factory=Limits)


def longest(trace: Trace, max_len: int | None = None) -> int:
    """Slots of the longest request, or `max_len` where that is given.

    Raises:
        ValueError: a request is longer.
    """
    most = int(trace.finals.max())
    if max_len is None:
        return most
    if max_len < most:
        raise ValueError(
            f"max_len: got {max_len}, expected at least {most}: request "
            f"{int(trace.finals.argmax()) + 1} of {trace.name} is that long"
        )
    return max_len


def default_pool(max_len: int, block_sizes: Sequence[int] = ()) -> int:
    """Slots of a pool that is too small for what comes, and large enough for every policy.

    Four of the longest requests, as a buddy heap rounds them: no slot of it is lost to the heap's
    own shape, and "max" runs four requests at once. On the four traces of docs/replay.md the line
    then waits for memory under every policy; with ample memory all would be served alike.

    Args:
        max_len: slots of the longest request that the service accepts.
        block_sizes: of paged allocation, where that is asked for.

    Raises:
        ValueError: such a pool has not two blocks of each size.
    """
    pool = 4 * power_of_two(max_len)
    largest = max(block_sizes, default=0)
    if pool < 2 * largest:
        raise ValueError(
            f"trace: got requests of at most {max_len} slots, which make a pool of {pool} by "
            f"default, expected at least two blocks of {largest}: give a pool, or smaller blocks"
        )
    return pool


def compare(
    trace: Trace,
    setting: Setting,
    policies: Sequence[str] = POLICIES,
    block_sizes: Sequence[int] = BLOCK_SIZES,
) -> Iterator[Figures]:
    """Run the policies one after the other, "paged" with each block size.

    Raises:
        ValueError: before anything runs: an unknown policy, an argument out of range, or a request
            that a policy can not serve from this pool.
    """
    if unknown := [policy for policy in policies if policy not in POLICIES]:
        raise ValueError(f"policy: got {unknown[0]!r}, expected some of {', '.join(POLICIES)}")
    memories: deque[Memory] = deque()
    for policy in policies:
        if policy == "paged":
            memories.extend(
                Paged(trace, setting.pool_slots, size, watermark=setting.watermark)
                for size in block_sizes
            )
        else:
            memories.append(
                Contiguous(
                    trace,
                    setting.pool_slots,
                    policy,
                    max_len=setting.max_len,
                    heap=setting.heap,
                )
            )
    for memory in memories:
        refuse(trace, memory)
    return _run(trace, setting, memories)


def _run(trace: Trace, setting: Setting, memories: deque[Memory]) -> Iterator[Figures]:
    while memories:
        # The last one's bookkeeping goes before the next one's grows.
        yield serve(trace, memories.popleft(), time=setting.time, limits=setting.limits)
