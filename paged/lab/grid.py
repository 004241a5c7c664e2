"""The grid: the problems that a backend is compiled for when nobody asks for a certain one.

Each problem takes seconds to compile, so that only what may depend on each other is combined. On
every layout: a decode of each storage type in blocks of each size; a prefill of each storage type
and in blocks of the least and the largest size; then what else a spec can ask for, one thing at a
time. What the backend does not claim it refuses: that is part of the answer.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paged.backends import Backend
from paged.lab.asks import Sizes
from paged.lab.compile import Call, Compiled, Status, refusals
from paged.lab.problem import Problem
from paged.lab.processes import Job, compile_jobs
from paged.lab.targets import Target
from paged.layouts import Layout

BLOCK_SIZES = (16, 64, 128, 256)
CACHE_DTYPES = ("bfloat16", "int8", "float8_e4m3fn")
DECODE: dict[str, Any] = {"num_seqs": 32, "kv_tokens": 1024, "query_len": 1}
PREFILL: dict[str, Any] = {"num_seqs": 2, "kv_tokens": 1024, "query_len": 256}
"""Behind a history."""

ALONE: tuple[dict[str, Any], ...] = (
    {"head_dim": 64},
    {"head_dim": 256},
    {"window": 128, "soft_cap": 30.0, "has_sinks": True},
    {"num_heads": 8, "num_kv_heads": 1},
    {"num_heads": 6, "num_kv_heads": 3, "head_dim": 64},
)
"""What differs from blocks of 64 and heads of 128 in bf16. A latent has its own width."""

ALONE_DECODE: tuple[dict[str, Any], ...] = (
    *(
        {"head_dim": width, "cache_dtype": dtype}
        for width in (64, 256)
        for dtype in CACHE_DTYPES[1:]
    ),
    {"cache_dtype": "float32"},
    {"cache_dtype": "float8_e5m2"},
)
"""Of a decode only, which is quicker to compile."""

_BLOCK_SIZE = 64

_SECONDS_A_JOB = 120


@dataclass(frozen=True, slots=True)
class Checked:
    """One call of the grid on one target."""

    target: Target
    problem: Problem
    call: Call
    compiled: Compiled

    @property
    def status(self) -> Status:
        """What came of it."""
        return self.compiled.status

    @property
    def step(self) -> str:
        """For tables."""
        if self.call == "write":
            return "write"
        return "decode" if self.problem.query_len == 1 else "prefill"

    def row(self) -> dict[str, Any]:
        """As plain data; no times, so that two runs are the same."""
        spec, problem = self.problem.spec, self.problem
        return {
            "target": self.target.name,
            "layout": problem.layout.name,
            "call": self.call,
            "query_len": problem.query_len,
            "block_size": problem.block_size,
            "cache_dtype": problem.cache_dtype,
            "query_dtype": problem.query_dtype,
            "num_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "window": spec.window,
            "soft_cap": spec.soft_cap,
            "has_sinks": spec.has_sinks,
            "status": self.status,
            "reason": self.compiled.reason,
        }

    @property
    def label(self) -> str:
        """For messages: whatever is not None or False."""
        left_out = ("status", "reason", "call", "query_len")
        named = {name: value for name, value in self.row().items() if name not in left_out}
        told = [f"{name} {value}" for name, value in named.items() if value not in (None, False)]
        return f"{self.step}, {', '.join(told)}"


def grid(layouts: Sequence[Layout]) -> list[Problem]:
    """The problems on these layouts, in a fixed order."""
    return list(dict.fromkeys(_problems(layouts)))


def check_grid(
    target: Target, backend: Backend, problems: Sequence[Problem], *, write: bool = True
) -> list[Checked]:
    """Compiles every problem's `attend`, and every cache's `write`, in one process.

    Raises:
        ImportError: the target's compiler is not installed.
    """
    calls: list[Call] = ["attend", "write"] if write else ["attend"]
    asked = [Job(backend, problem, call) for call in calls for problem in _distinct(problems, call)]
    found: dict[int, Compiled] = {}
    for index, job in enumerate(asked):
        if reasons := refusals(backend, job.problem, target):
            found[index] = Compiled("refused", reason="; ".join(dict.fromkeys(reasons)))
    left = [index for index in range(len(asked)) if index not in found]
    if left:
        jobs = [asked[index] for index in left]
        done = compile_jobs(target, jobs, timeout_s=_SECONDS_A_JOB * len(jobs))
        found |= dict(zip(left, done, strict=True))
    return [Checked(target, job.problem, job.call, found[i]) for i, job in enumerate(asked)]


def _problems(layouts: Sequence[Layout]) -> Iterator[Problem]:
    for layout in layouts:
        for dtype, block_size in itertools.product(CACHE_DTYPES, BLOCK_SIZES):
            yield Sizes(cache_dtype=dtype, **DECODE).problem(layout, block_size)
        for change in (*ALONE, *ALONE_DECODE):
            yield Sizes(**change, **DECODE).problem(layout, _BLOCK_SIZE)
        for dtype in CACHE_DTYPES:
            yield Sizes(cache_dtype=dtype, **PREFILL).problem(layout, _BLOCK_SIZE)
        for block_size in (min(BLOCK_SIZES), max(BLOCK_SIZES)):
            yield Sizes(**PREFILL).problem(layout, block_size)
        for change in ALONE:
            yield Sizes(**change, **PREFILL).problem(layout, _BLOCK_SIZE)


def _distinct(problems: Sequence[Problem], call: Call) -> list[Problem]:
    """For a write those that differ in what it sees: the cache and the rows."""
    if call == "attend":
        return list(problems)
    seen = {
        (p.layout, p.cache_spec, p.query_dtype, p.num_seqs * p.query_len): p
        for p in reversed(problems)
    }
    return list(reversed(seen.values()))
