"""XLA's program around the kernels, from its text: which kernels are custom, and in which loops.

Only names and nesting are read: a while loop's body is a computation of its own, and an
instruction that is compiled to a kernel stands in the entry computation or in such a body.
"""

import re
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*)$")
_BODY = re.compile(r"\bbody=%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(?:to_apply|true_computation|false_computation)=%([\w.\-]+)"
    r"|\bbranch_computations=\{([^}]*)\}"
)
_TRIPS = re.compile(r'known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)')
# Kernels that a person wrote: Mosaic for TPU, Mosaic and Triton for GPU.
_CUSTOM = re.compile(
    r'custom_call_target="(tpu_custom_call|mosaic_gpu\w*|__gpu\$xla\.gpu\.triton)"'
)


@dataclass(frozen=True, slots=True)
class WhileLoop:
    """A loop around kernels.

    Attributes:
        depth: 1 for the outermost.
        order: position among loops of this depth, in program order, from 0.
        trips: how often the body runs each time it is entered, where XLA knows.
    """

    depth: int
    order: int
    trips: int | None


@dataclass(frozen=True, slots=True)
class Program:
    """Names of the program's instructions and the loops around each.

    Attributes:
        custom: instructions that are kernels someone wrote, Pallas's among them.
        loops: for each instruction the while loops around it, outermost first.
    """

    custom: tuple[str, ...]
    loops: dict[str, tuple[WhileLoop, ...]]


def read_program(text: str) -> Program:
    """Reads a compiled program's text, `jax.stages.Compiled.as_text()`."""
    entry, computations = _computations(text)
    loops: dict[str, tuple[WhileLoop, ...]] = {}
    custom: list[str] = []
    orders: dict[int, int] = {}

    def visit(computation: str, around: tuple[WhileLoop, ...]) -> None:
        for name, body in computations.get(computation, ()):
            loops[name] = around
            if _CUSTOM.search(body):
                custom.append(name)
            if " while(" in body and (found := _BODY.search(body)):
                depth = len(around) + 1
                order = orders.get(depth, 0)
                orders[depth] = order + 1
                trips = _TRIPS.search(body)
                inner = WhileLoop(depth, order, int(trips[1]) if trips else None)
                visit(found[1], (*around, inner))
            elif " conditional(" in body or " call(" in body:
                for one, several in _CALLED.findall(body):
                    for called in (one, *several.replace("%", "").split(",")):
                        if called.strip():
                            visit(called.strip(), around)

    visit(entry, ())
    return Program(tuple(custom), loops)


def _computations(text: str) -> tuple[str, dict[str, list[tuple[str, str]]]]:
    """The entry's name, and for each computation its instructions: (name, the rest)."""
    computations: dict[str, list[tuple[str, str]]] = {}
    entry = current = ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = head[2]
            computations[current] = []
            entry = current if head[1] else entry
        elif current and (found := _INSTRUCTION.match(line)):
            computations[current].append((found[1], found[2]))
    return entry, computations
