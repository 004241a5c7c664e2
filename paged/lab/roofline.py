"""The static roofline: cycles that a kernel issues per KV token against cycles that HBM needs.

The schedule's bundles of each loop, times how often the loop runs, over the KV tokens of the step,
are the cycles that the core is busy with one token. The token's bytes over the bandwidth are the
cycles that HBM is busy with it. Copies overlap with computing, so that the larger of the two
bounds the kernel from below: a kernel whose first figure is the smaller one can reach HBM speed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paged.backends.loops import LoopTrips
from paged.lab.bundles import KernelCounts, Loop
from paged.lab.problem import Problem
from paged.lab.program import Program, WhileLoop
from paged.lab.targets import TpuTarget


@dataclass(frozen=True, slots=True)
class Total:
    """Bundles of a whole call.

    Attributes:
        scheduled: of the schedule; cycles, if nothing stalls.
        issued: fetched.
        bound: if each loop's busiest kind of slot were all that counts.
    """

    scheduled: float = 0.0
    issued: float = 0.0
    bound: float = 0.0

    def __add__(self, other: "Total") -> "Total":
        return Total(
            self.scheduled + other.scheduled, self.issued + other.issued, self.bound + other.bound
        )

    def per(self, tokens: int) -> "Total":
        """The same for one of so many tokens."""
        return Total(self.scheduled / tokens, self.issued / tokens, self.bound / tokens)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why a total cannot be told."""

    reason: str


def hbm_cycles_per_token(problem: Problem, target: TpuTarget) -> float:
    """Cycles of one core in which HBM delivers one token's keys and values."""
    return target.hbm_cycles(problem.bytes_per_token(target.platform))


def matmul_cycles_per_token(problem: Problem, target: TpuTarget) -> float:
    """Cycles of the matrix units at their nominal peak, per KV token, masked pairs left out."""
    return problem.flop_per_token() / target.flop_per_bundle


def total(
    kernels: Iterable[KernelCounts],
    program: Program,
    copies: dict[str, tuple[str, ...]],
    rules: Sequence[LoopTrips],
) -> Total | Unknown:
    """Bundles of some of a program's kernels in one call.

    Args:
        kernels: which.
        program: the program they are in.
        copies: instructions that share a kernel, see `Dump`.
        rules: the backend's word on trip counts; static ones are known without.
    """
    sum_ = Total()
    for kernel in kernels:
        launched = launches(kernel.name, program, copies, rules)
        if isinstance(launched, Unknown):
            return launched
        for index, runs in enumerate(loop_runs(kernel, launched, rules)):
            loop = kernel.loops[index]
            if runs is None:
                return Unknown(
                    f"kernel {kernel.name}: the trip count of loop {index} (depth {loop.depth}, "
                    f"{loop.scheduled} bundles) depends on values, and the backend does not tell it"
                )
            sum_ += Total(runs * loop.scheduled, runs * loop.issued, runs * loop.bound)
    return sum_


def launches(
    name: str, program: Program, copies: dict[str, tuple[str, ...]], rules: Sequence[LoopTrips]
) -> float | Unknown:
    """How often a kernel is started in one call."""
    instructions = [one for one in copies.get(name, (name,)) if one in program.loops]
    if not instructions:
        return Unknown(f"kernel {name}: not found in XLA's program")
    started = 0.0
    for instruction in instructions:
        runs: float | None = 1.0
        for loop in program.loops[instruction]:
            runs = _program_runs(loop, runs, rules)
        if runs is None:
            return Unknown(
                f"kernel {name}: XLA's while loop around it has a trip count that depends on "
                "values, and the backend does not tell it"
            )
        started += runs
    return started


def loop_runs(
    kernel: KernelCounts, launched: float, rules: Sequence[LoopTrips]
) -> tuple[float | None, ...]:
    """How often each loop's body runs in one call; None where nobody knows.

    A rule of the backend comes first, then the compiler's static trip count.
    """
    runs: list[float | None] = []
    order: dict[int, int] = {}
    for loop, trips in zip(kernel.loops, kernel.trips, strict=True):
        if loop.parent is None:
            runs.append(launched)
            continue
        nth = order.get(loop.depth, 0)
        order[loop.depth] = nth + 1
        told = [rule for rule in rules if _is_about(rule, kernel.name, loop, nth)]
        around = runs[loop.parent]
        if told:
            runs.append(told[0].runs)
        else:
            runs.append(None if around is None or trips is None else around * trips)
    return tuple(runs)


def _is_about(rule: LoopTrips, kernel: str, loop: Loop, nth: int) -> bool:
    if rule.where != "kernel" or rule.depth != loop.depth or not kernel.startswith(rule.kernel):
        return False
    if rule.nth is not None and rule.nth != nth:
        return False
    if rule.holds == "matmul":
        return loop.has_matmul
    return rule.holds is None or loop.copies > 0


def _program_runs(
    loop: WhileLoop, around: float | None, rules: Sequence[LoopTrips]
) -> float | None:
    for rule in rules:
        is_same = rule.where == "program" and rule.depth == loop.depth
        if is_same and rule.nth in (None, loop.order):
            return rule.runs
    return None if around is None or loop.trips is None else around * loop.trips
