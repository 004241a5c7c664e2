"""Replay of request traces: what each way to hand out KV-cache memory wastes, and what it costs.

No kernel runs here, and nothing but the block manager is asked: neither jax nor torch is needed.
"""

from paged.replay.clock import StepTime
from paged.replay.compare import BLOCK_SIZES, POLICIES, Setting, compare, default_pool, longest
from paged.replay.contiguous import GUESSES, Contiguous
from paged.replay.heaps import HEAPS, power_of_two
from paged.replay.measure import KINDS, Figures, Series
from paged.replay.memory import Held, Memory
from paged.replay.paging import Paged
from paged.replay.service import Limits, serve
from paged.replay.trace import Trace, read_trace

__all__ = [
    "BLOCK_SIZES",
    "GUESSES",
    "HEAPS",
    "KINDS",
    "POLICIES",
    "Contiguous",
    "Figures",
    "Held",
    "Limits",
    "Memory",
    "Paged",
    "Series",
    "Setting",
    "StepTime",
    "Trace",
    "compare",
    "default_pool",
    "longest",
    "power_of_two",
    "read_trace",
    "serve",
]
