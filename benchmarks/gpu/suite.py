"""The conformance suite, case by case, in the processes of the pool.

`planned_items` and `run_item` run there; `tasks_of` orders what they are given.
"""

import functools
from collections import deque
from typing import Any

from benchmarks.gpu.pool import Task

GROUPS = (
    *("batch", "memory", "window", "quantised", "lengths", "sinks", "soft_cap", "lse", "slots"),
    *("mla", "heads", "head_dim", "block_size"),
)
"""The most telling first: where the budget ends, less is lost. Others follow."""

FRONT_ENDS: tuple[str, ...] = ("torch", "jax", "torch_invariant")
_INVARIANT_CASES = ("batch/*", "lse/*")
_DRY_LAYOUTS = ("flash_attn", "mla")
_DRY_CASES = ("batch/one_sequence", "quantised/int8", "slots/decode_padding")


def environment_of(front_end: str, *, dry: bool) -> dict[str, str]:
    """JAX computes what is expected, on the CPU, unless it is what is tested."""
    if dry:
        # Small arrays only: threads would wait for each other.
        return {"JAX_PLATFORMS": "cpu", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return {"JAX_PLATFORMS": "cuda,cpu" if front_end == "jax" else "cpu"}


def planned_items(front_end: str, dry: bool) -> dict[str, Any]:
    """What there is to run, or why nothing can be."""
    from paged.conformance.suite import planned, select
    from paged.layouts import get_layout

    try:
        subject = _subject(front_end, dry)
    except (ImportError, RuntimeError, ValueError) as error:
        return {"reason": f"{type(error).__name__}: {error}".splitlines()[0], "items": []}
    cases = _INVARIANT_CASES if front_end == "torch_invariant" else None
    cases, layouts = (_DRY_CASES, _DRY_LAYOUTS) if dry else (cases, subject.backend.layouts)
    items = [
        (layout.name, case.name, dtype)
        for case, layout, dtype in planned(subject, select(cases), map(get_layout, layouts))
        if not dry or dtype == "float32"
    ]
    return {"reason": "", "items": items}


def run_item(front_end: str, dry: bool, layout: str, case: str, dtype: str) -> dict[str, Any]:
    """One case on one layout in one dtype."""
    from paged.conformance.programs import release_programs
    from paged.conformance.suite import run_case, select
    from paged.layouts import get_layout

    (chosen,) = select(case)
    result = run_case(_subject(front_end, dry), chosen, get_layout(layout), dtype, full=False)
    if dry:
        # On a device the process is large from the start, and would forget programs at every case.
        release_programs()
    return result.as_json() | {"seconds": result.seconds, "rule": result.rule}


def tasks_of(front_end: str, items: list[tuple[str, str, str]], *, dry: bool) -> list[Task]:
    """A task for each group of cases on each layout."""
    parts: dict[tuple[str, str], deque[tuple[Any, ...]]] = {}
    for layout, case, dtype in items:
        group = case.partition("/")[0]
        parts.setdefault((group, layout), deque()).append((front_end, dry, layout, case, dtype))
    return [
        Task(
            f"{front_end} {layout} {group}",
            "benchmarks.gpu.suite:run_item",
            part,
            environment_of(front_end, dry=dry),
        )
        for (group, layout), part in parts.items()
    ]


def by_group(tasks: list[Task]) -> list[Task]:
    """In the order of `GROUPS`, so that all front ends and layouts meet the telling cases."""

    def place(task: Task) -> int:
        group = task.name.rpartition(" ")[2]
        return GROUPS.index(group) if group in GROUPS else len(GROUPS)

    return sorted(tasks, key=place)


@functools.cache
def _subject(front_end: str, dry: bool) -> Any:
    from paged.conformance.lookup import host_reason, subject_of

    backend = _backend(front_end, dry)
    if reason := host_reason(backend):
        raise ValueError(reason)
    if front_end == "jax" and not dry:
        # It is imported at the first launch, where its absence would fail every case.
        import jax_triton  # noqa: F401  # pyright: ignore[reportMissingImports]
    return subject_of(backend)


def _backend(front_end: str, dry: bool) -> Any:
    if front_end == "jax":
        from paged.backends.triton.on_jax import TritonJaxBackend

        return TritonJaxBackend(interpret=dry)
    from paged.backends.triton.on_torch import TritonBackend

    return TritonBackend(interpret=dry, batch_invariant=front_end == "torch_invariant")
