"""The block manager against others: time per operation on one trace, and against pool size.

    python benchmarks/blocks.py                                  # a synthetic trace
    python benchmarks/blocks.py --trace conversation_trace.jsonl --json

The trace has one request a line in the format of Mooncake (arXiv:2407.00079): `input_length`,
`output_length` and `hash_ids`, one id for each 512 tokens; equal ids mean equal tokens after equal
histories. Requests are admitted in their order as long as fewer than 64 run, every step gives each
that runs one token, and one that has its output (64 tokens at most) is freed. All subjects do the
same work, in turns, several times; figures are medians over all of it. Prompts are lists of ints.
Times are CPU time of the one thread that works: nothing here waits, so it is the time on the clock
of a quiet machine, and another process beside it does not count.

The managers of vLLM and SGLang are not among the subjects, installed or not: neither could be
imported where this was written, and an adaptor that never ran proves nothing. What is known of
vLLM's are the quoted figures of `VLLM`.
"""

import argparse
import gc
import hashlib
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

from paged.blocks import KVCacheManager

BLOCK_SIZE = 16
NUM_BLOCKS = 200_000
IN_FLIGHT = 64
MAX_OUTPUT = 64
HASH_ID_TOKENS = 512
VLLM = {
    "hit_rate": 0.133,
    "step_us_per_request": 15.0,
    "admit_us_mean": 3100.0,
    "hash_us_per_block": 4.2,
}
"""Of vLLM 0.32's KVCacheManager (CPU wheel, sha256), measured once and apart on a machine of this
kind, with the first 1,000 requests of Mooncake's conversation trace. Uncached, a step takes 10.8 us
a request.
"""

POOL_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the trace."""

    number: int
    token_ids: list[int]
    num_outputs: int


def trace_of(path: Path | None, count: int, seed: int) -> list[Ask]:
    """The first requests of a trace, or of one that is made up in its form."""
    lines = synthetic(count, seed) if path is None else map(json.loads, path.open())
    asks = []
    for number, line in zip(range(count), lines, strict=False):
        starts = np.array(line["hash_ids"], np.int64)[:, None] * HASH_ID_TOKENS
        tokens = (starts + np.arange(HASH_ID_TOKENS)).reshape(-1)[: line["input_length"]]
        outputs = max(1, min(MAX_OUTPUT, line["output_length"]))
        asks.append(Ask(number, tokens.tolist(), outputs))
    return asks


def synthetic(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Conversations that come back with their history and something new."""
    rng = random.Random(seed)
    histories: list[list[int]] = []
    next_id = 1
    for _ in range(count):
        is_new = not histories or rng.random() < 0.7
        history = [0] if is_new else histories.pop(rng.randrange(len(histories)))
        added = min(200, 1 + int(rng.expovariate(1 / 25)))
        ids = [*history, *range(next_id, next_id + added)]
        next_id += added
        histories.append(ids)
        length = (len(ids) - 1) * HASH_ID_TOKENS + rng.randint(1, HASH_ID_TOKENS)
        yield {
            "input_length": length,
            "output_length": 1 + int(rng.expovariate(1 / 300)),
            "hash_ids": ids,
        }


class Subject(Protocol):
    """A block manager under test."""

    name: str

    def hashed(self, token_ids: list[int]) -> Any:
        """A prompt as `admit` takes it: what can be computed before there is room."""
        ...

    def admit(self, request: int, prompt: Any) -> int:
        """Blocks for a request, its full ones findable; returns its cached tokens."""
        ...

    def step(self, requests: list[int], token_ids: list[int]) -> None:
        """One more token for each request."""
        ...

    def free(self, request: int) -> None:
        """All of a request's blocks."""
        ...


class Ours:
    """This project's manager."""

    def __init__(self, num_blocks: int, prefix_caching: bool = True) -> None:
        self.name = "paged" if prefix_caching else "paged, no caching"
        self.manager = KVCacheManager(num_blocks, BLOCK_SIZE, prefix_caching=prefix_caching)
        # As a scheduler has them.
        self._rows: dict[int, int] = {}

    def hashed(self, token_ids: list[int]) -> Any:
        return self.manager.prompt(token_ids)

    def admit(self, request: int, prompt: Any) -> int:
        admission = self.manager.admit(request, prompt)
        self.manager.commit_prompt(request, len(prompt))
        self._rows[request] = admission.row
        return admission.num_cached_tokens

    def step(self, requests: list[int], token_ids: list[int]) -> None:
        rows = np.array(list(map(self._rows.__getitem__, requests)))
        self.manager.append_batch(rows, np.array(token_ids, np.int32))

    def free(self, request: int) -> None:
        self.manager.free(request)


@dataclass(slots=True)
class _Block:
    number: int
    ref_count: int = 0
    digest: bytes = b""
    token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Sequence:
    token_ids: list[int]
    digests: list[bytes]
    table: list[int] = field(default_factory=list)


class PlainPython:
    """Objects for blocks, a deque of free ids, a dictionary of digests: how a small engine does it
    (the manner of nano-vllm, written anew)."""

    name = "plain Python"

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [_Block(number) for number in range(num_blocks)]
        self.free_ids = deque(range(1, num_blocks))
        self.known: dict[bytes, int] = {}
        self.sequences: dict[int, _Sequence] = {}

    def hashed(self, token_ids: list[int]) -> Any:
        digests, parent = [], b""
        for end in range(BLOCK_SIZE, len(token_ids) + 1, BLOCK_SIZE):
            parent = self._digest(parent, token_ids[end - BLOCK_SIZE : end])
            digests.append(parent)
        return _Sequence(list(token_ids), digests)

    def admit(self, request: int, prompt: Any) -> int:
        tokens, digests, table = prompt.token_ids, prompt.digests, prompt.table
        cached, is_hit = 0, True
        for index in range(-(-len(tokens) // BLOCK_SIZE)):
            is_full = index < len(digests)
            number = self.known.get(digests[index]) if is_hit and is_full else None
            is_hit = number is not None and (index + 1) * BLOCK_SIZE < len(tokens)
            if is_hit and number is not None:
                block = self.blocks[number]
                if block.ref_count == 0:
                    self.free_ids.remove(number)
                block.ref_count += 1
                cached += BLOCK_SIZE
            else:
                block = self._take()
                if is_full:
                    content = tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
                    self._fill(block, digests[index], content)
            table.append(block.number)
        self.sequences[request] = prompt
        return cached

    def step(self, requests: list[int], token_ids: list[int]) -> None:
        for request, token in zip(requests, token_ids, strict=True):
            sequence = self.sequences[request]
            if len(sequence.token_ids) % BLOCK_SIZE == 0:
                sequence.table.append(self._take().number)
            sequence.token_ids.append(token)
            if len(sequence.token_ids) % BLOCK_SIZE == 0:
                content = sequence.token_ids[-BLOCK_SIZE:]
                parent = sequence.digests[-1] if sequence.digests else b""
                digest = self._digest(parent, content)
                sequence.digests.append(digest)
                self._fill(self.blocks[sequence.table[-1]], digest, content)

    def free(self, request: int) -> None:
        for number in reversed(self.sequences.pop(request).table):
            block = self.blocks[number]
            block.ref_count -= 1
            if block.ref_count == 0:
                self.free_ids.append(number)

    def _take(self) -> _Block:
        block = self.blocks[self.free_ids.popleft()]
        if block.digest and self.known.get(block.digest) == block.number:
            del self.known[block.digest]
        block.ref_count, block.digest, block.token_ids = 1, b"", []
        return block

    def _fill(self, block: _Block, digest: bytes, token_ids: list[int]) -> None:
        block.digest, block.token_ids = digest, token_ids
        self.known.setdefault(digest, block.number)

    def _digest(self, parent: bytes, token_ids: list[int]) -> bytes:
        return hashlib.sha256(parent + np.array(token_ids, np.int32).tobytes()).digest()


SUBJECTS: dict[str, Callable[[int], Subject]] = {
    "paged": Ours,
    "paged, no caching": lambda num_blocks: Ours(num_blocks, prefix_caching=False),
    "plain Python": PlainPython,
}


class Stopwatch:
    """Seconds of each kind of operation."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def __call__(self, kind: str, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.thread_time()
        result = call(*arguments)
        self.seconds.setdefault(kind, []).append(time.thread_time() - start)
        return result


def play(subject: Subject, asks: list[Ask]) -> tuple[Stopwatch, float]:
    """The whole trace; the times of its operations and the share of tokens that were cached."""
    clock, waiting = Stopwatch(), deque(asks)
    a_block = clock.seconds["hash a block"] = []
    left: dict[int, int] = {}
    cached = total = 0
    running: list[int] = []
    while waiting or left:
        if len(left) < IN_FLIGHT and waiting:
            while len(left) < IN_FLIGHT and waiting:
                ask = waiting.popleft()
                prompt = clock("hash", subject.hashed, ask.token_ids)
                cached += clock("admit", subject.admit, ask.number, prompt)
                total += len(ask.token_ids)
                blocks = max(1, len(ask.token_ids) // BLOCK_SIZE)
                a_block.append(clock.seconds["hash"][-1] / blocks)
                left[ask.number] = ask.num_outputs
            running = list(left)
        # The numbers of a request's outputs serve as their ids: no two requests share them.
        clock(f"step of {len(running)}", subject.step, running, [2**30 + r for r in running])
        for request in running:
            left[request] -= 1
            if not left[request]:
                clock("free", subject.free, request)
                del left[request]
        if len(left) < len(running):
            running = list(left)
    return clock, cached / total


def compare(asks: list[Ask], repeats: int) -> list[dict[str, Any]]:
    """All subjects on one trace, in turns."""
    times: dict[str, list[dict[str, list[float]]]] = {name: [] for name in SUBJECTS}
    hits: dict[str, float] = {}
    for _ in range(repeats):
        for name, make in SUBJECTS.items():
            gc.collect()
            clock, hits[name] = play(make(NUM_BLOCKS), asks)
            times[name].append(clock.seconds)
    rows = []
    for name, runs in times.items():
        step = f"step of {IN_FLIGHT}"

        def median(kind: str, runs: list[dict[str, list[float]]] = runs) -> float:
            return statistics.median(second for run in runs for second in run[kind])

        def mean(kind: str, runs: list[dict[str, list[float]]] = runs) -> float:
            return statistics.median(statistics.fmean(run[kind]) for run in runs)

        rows.append(
            {
                "subject": name,
                "hit_rate": hits[name],
                "step_us": median(step) * 1e6,
                "step_us_mean": mean(step) * 1e6,
                "step_us_per_request": mean(step) * 1e6 / IN_FLIGHT,
                "admit_us": median("admit") * 1e6,
                "admit_us_mean": mean("admit") * 1e6,
                "admit_us_max": statistics.median(max(run["admit"]) for run in runs) * 1e6,
                "hash_us_per_block": median("hash a block") * 1e6,
                "free_us": median("free") * 1e6,
            }
        )
    return rows


def against_pool_size(repeats: int) -> list[dict[str, float]]:
    """The same operations in pools of very different size, all of whose blocks are cached."""
    rows = []
    for num_blocks in POOL_SIZES:
        manager = KVCacheManager(num_blocks + 1, BLOCK_SIZE)
        clock, size = Stopwatch(), 512
        token = 0
        # Fill the pool with cached blocks, so that what follows evicts.
        for number in range(-(-num_blocks // size) + 1):
            _churn(manager, Stopwatch(), number, token, size=min(size, num_blocks))
            token += BLOCK_SIZE * size
        gc.collect()
        for number in range(repeats):
            _churn(manager, clock, number, token, size=min(size, num_blocks))
            token += BLOCK_SIZE * size
        manager.check_integrity()
        rows.append(
            {
                "num_blocks": num_blocks,
                "bytes_per_block": manager.nbytes / num_blocks,
                **{
                    f"{kind}_us": statistics.median(clock.seconds[kind]) * 1e6
                    for kind in clock.seconds
                },
            }
        )
    return rows


def _churn(
    manager: KVCacheManager, clock: Stopwatch, number: int, token: int, *, size: int
) -> None:
    """One request of `size` blocks comes, takes a step and goes."""
    count = BLOCK_SIZE * size - 1
    prompt = manager.prompt(np.arange(token, token + count) % 2**31)
    clock("admit", manager.admit, number, prompt)
    clock("commit", manager.commit_prompt, number, count)
    rows = np.array([manager.row(number)])
    clock("step", manager.append_batch, rows, np.array([token % 2**31], np.int32))
    clock("free", manager.free, number)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="a trace in Mooncake's format; else made up")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the synthetic trace")
    parser.add_argument("--sizes", action="store_true", help="also against pool size (minutes)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.requests <= IN_FLIGHT:
        parser.error(f"--requests: got {given.requests}, expected more than {IN_FLIGHT} in flight")
    asks = trace_of(given.trace, given.requests, given.seed)
    result: dict[str, Any] = {
        "trace": given.trace.name if given.trace else f"synthetic, seed {given.seed}",
        "requests": len(asks),
        "blocks_per_request": statistics.fmean(-(-len(a.token_ids) // BLOCK_SIZE) for a in asks),
        "subjects": compare(asks, given.repeats),
    }
    if given.sizes:
        result["pool_sizes"] = against_pool_size(100)
    if given.json:
        print(json.dumps(result, indent=2))
        return
    console = Console()
    subjects = result.pop("subjects")
    # Another trace is other work.
    published = VLLM if given.trace else {}
    table = Table("", *(row["subject"] for row in subjects), "vLLM 0.32", "paged / vLLM")
    table.columns[0].no_wrap = True
    for figure in list(subjects[0])[1:]:
        cells = [f"{row[figure]:,.4g}" for row in subjects]
        theirs = published.get(figure)
        ratio = "" if theirs is None else f"{subjects[0][figure] / theirs:.2f} x"
        table.add_row(figure, *cells, "" if theirs is None else f"{theirs:,.4g}", ratio)
    console.print(table)
    if sizes := result.pop("pool_sizes", []):
        table = Table(*sizes[0])
        for row in sizes:
            table.add_row(*(f"{value:,.4g}" for value in row.values()))
        console.print(table)
    console.print(result)
    if published:
        console.print("vLLM 0.32: of the conversation trace, and not of this run; see this file")


if __name__ == "__main__":
    main()
