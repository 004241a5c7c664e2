"""What a compiled step spends its time on, from JAX's own trace of the operations in it."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import jax

PARTS: tuple[str, ...] = ("attention", "sampling")
"""Scopes inside a step; what lies in neither is the model's own arithmetic."""

MODEL: str = "model"


class Operation(NamedTuple):
    """One operation that ran, once.

    Attributes:
        program: which program it is of.
        run: which run of that program.
        name: of the instruction.
        seconds: that it took.
    """

    program: int
    run: int
    name: str
    seconds: float


def traced(call: Callable[[], object]) -> list[Operation]:
    """The operations of all programs that run within a call; none where JAX does not trace them."""
    options = jax.profiler.ProfileOptions()
    # Frames of Python would cost more than what is traced.
    options.python_tracer_level = 0
    with TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            call()
        finally:
            jax.profiler.stop_trace()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        return [operation for file in files for operation in _operations(file)]


def shares(operations: Iterable[Operation], program: str) -> dict[str, float] | None:
    """How the time of the program that ran most often is shared out, by `PARTS` and the model.

    Args:
        operations: of one program or of several.
        program: its text after compilation, which says what each instruction is for.

    Returns:
        Shares that add up to 1; None where instructions were traced that the text does not have,
        or none was.
    """
    by_program: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_program[operation.program].append(operation)
    runs = {number: len({o.run for o in own}) for number, own in by_program.items()}
    if not runs:
        return None
    scopes = {name: _part(scope) for name, scope in _INSTRUCTION.findall(program)}
    names = set(_NAME.findall(program))
    spent: dict[str, float] = dict.fromkeys((*PARTS, MODEL), 0.0)
    for operation in by_program[max(runs, key=lambda number: runs[number])]:
        if operation.name not in names:
            return None
        spent[scopes.get(operation.name, MODEL)] += operation.seconds
    total = sum(spent.values())
    return {part: seconds / total for part, seconds in spent.items()} if total else None


_NAME = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = ", re.MULTILINE)
_INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.-]+) = .*op_name="([^"]*)"', re.MULTILINE)


def _part(scope: str) -> str:
    words = scope.split("/")
    return next((part for part in PARTS if part in words), MODEL)


def _operations(file: Path) -> Iterable[Operation]:
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats and "program_id" in stats:
                    yield Operation(
                        int(stats["program_id"]),
                        int(stats.get("run_id", 0)),
                        str(stats["hlo_op"]),
                        event.duration_ns / 1e9,
                    )
