"""What `partial_tails` brings and what it costs: the measurements behind its default.

    python -m benchmarks.partial_tails --trace conversation_trace.jsonl
    python -m benchmarks.partial_tails --json

Two loads go through the block manager with and without it, as in `benchmarks.blocks`: a trace of
Mooncake, and chats that are made up so that there is much to find. Then what a copied token would
have cost: the copy of a block and the computing of a token are timed with a model that ships with
the package.
"""

import argparse
import gc
import json
import random
import statistics
import time
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.blocks import BLOCK_SIZE, IN_FLIGHT, NUM_BLOCKS, Ask, Ours, play, trace_of
from paged.blocks import KVCacheManager
from paged.blocks.copies import Copies, CopyOrders
from paged.engine import LLM, SamplingParams

CHATS_AT_ONCE = 200
MODEL = "tiny-gqa"


class WithTails(Ours):
    """This project's manager; a step takes the copy orders, as an engine does."""

    def __init__(self, num_blocks: int, partial_tails: bool) -> None:
        super().__init__(num_blocks)
        self.manager = KVCacheManager(num_blocks, BLOCK_SIZE, partial_tails=partial_tails)

    def step(self, requests: list[int], token_ids: list[int]) -> None:
        super().step(requests, token_ids)
        self.manager.take_copies()


def chats(count: int, seed: int) -> list[Ask]:
    """Chats of several turns under eight system prompts, whose lengths are no multiples of a block.

    A turn is the history, the answer and a new message of 20 to 300 tokens. One in five is the
    last message sent again, changed from some token on: so two prompts part within a block.
    """
    rng = random.Random(seed)
    next_token = iter(range(2**30))

    def new(low: int, high: int) -> list[int]:
        return [next(next_token) for _ in range(rng.randint(low, high))]

    systems = [new(50, 1000) for _ in range(8)]
    # What each chat has said, where its last message starts, and whose answer comes after it.
    histories: list[tuple[list[int], int, int, int]] = []
    asks: list[Ask] = []
    for number in range(count):
        outputs = rng.randint(8, 64)
        # A chat comes back when all that was in flight with it is done.
        if len(histories) < CHATS_AT_ONCE:
            said = list(rng.choice(systems))
        else:
            said, start, author, answered = histories.pop(0)
            if rng.random() < 0.2:
                said = said[: rng.randint(start + 1, len(said))]
            elif rng.random() < 0.25:
                said = list(rng.choice(systems))
            else:
                # As `play` has it: the number of a request is the token of its answer.
                said = [*said, *[2**30 + author] * answered]
        start = len(said)
        said = [*said, *new(20, 300)]
        histories.append((said, start, number, outputs))
        asks.append(Ask(number, said, outputs))
    return asks


def load(name: str, asks: list[Ask], repeats: int) -> dict[str, Any]:
    """One load without and with partial tails, in turns."""
    seconds: dict[bool, list[dict[str, list[float]]]] = {False: [], True: []}
    shares: dict[bool, float] = {}
    copies = 0
    for _ in range(repeats):
        for is_on in seconds:
            subject = WithTails(NUM_BLOCKS, is_on)
            gc.collect()
            clock, shares[is_on] = play(subject, asks)
            seconds[is_on].append(clock.seconds)
            copies = subject.manager.stats().counters.partial_copies

    def mean(is_on: bool, kind: str) -> float:
        return statistics.median(statistics.fmean(run[kind]) for run in seconds[is_on]) * 1e6

    total = sum(len(ask.token_ids) for ask in asks)
    outputs = sum(ask.num_outputs for ask in asks) / len(asks)
    step = f"step of {IN_FLIGHT}"
    more = {kind: mean(True, kind) - mean(False, kind) for kind in ("admit", step)}
    return {
        "load": name,
        "tokens_per_prompt": total / len(asks),
        "hit_rate_without": shares[False],
        "copied_tokens_per_request": (shares[True] - shares[False]) * total / len(asks),
        "copies_per_request": copies / len(asks),
        "admit_us_without": mean(False, "admit"),
        "admit_us_with": mean(True, "admit"),
        "step_us_without": mean(False, step),
        "step_us_with": mean(True, step),
        "outputs_per_request": outputs,
        # Its admission, and its share of the steps that give it its outputs.
        "more_us_per_request": more["admit"] + more[step] / IN_FLIGHT * outputs,
    }


def kept_bytes(num_blocks: int = 20_000) -> float:
    """Memory that a cached block takes with partial tails beyond what it takes without."""
    taken = []
    for is_on in (False, True):
        tracemalloc.start()
        manager = KVCacheManager(num_blocks + 1, BLOCK_SIZE, partial_tails=is_on)
        for number in range(num_blocks // 500):
            tokens = np.arange(500 * BLOCK_SIZE) + number * 500 * BLOCK_SIZE
            manager.admit(number, manager.prompt(tokens))
            manager.commit_prompt(number, tokens.size)
            manager.free(number)
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    return (taken[1] - taken[0]) / num_blocks


def device(repeats: int) -> dict[str, float]:
    """Copying one block of all layers, and computing one token of a long prompt, in us."""
    llm = LLM(MODEL, num_blocks=200, enable_prefix_caching=False, max_num_batched_tokens=512)
    length = llm.model.config.max_position_embeddings // 2
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    rng = np.random.default_rng(0)
    prompt = rng.integers(1, 200, length).tolist()
    runner = llm._engine._runner
    none, one = np.zeros(0, np.int32), np.ones(1, np.int32)
    orders = CopyOrders(Copies(none, none), Copies(one, one + 1), Copies(none, none))
    copying, computing = [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        runner.copy(orders)
        jax.block_until_ready(runner._caches)
        copying.append(time.perf_counter() - start)
        start = time.perf_counter()
        llm.generate([prompt], params)
        computing.append((time.perf_counter() - start) / length)
    # The first of each compiles.
    return {
        "copy_us": statistics.median(copying[1:]) * 1e6,
        "token_us": statistics.median(computing[1:]) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="a trace in Mooncake's format")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the chats")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    loads = [load("chats", chats(given.requests, given.seed), given.repeats)]
    if given.trace:
        asks = trace_of(given.trace, given.requests, given.seed)
        loads.insert(0, load(given.trace.name, asks, given.repeats))
    result = {"loads": loads, "kept_bytes_per_block": kept_bytes(), MODEL: device(20)}
    if given.json:
        print(json.dumps(result, indent=2))
        return
    console = Console()
    table = Table("", *(row["load"] for row in loads))
    for figure in list(loads[0])[1:]:
        table.add_row(figure, *(f"{row[figure]:,.4g}" for row in loads))
    console.print(table)
    console.print({name: value for name, value in result.items() if name != "loads"})


if __name__ == "__main__":
    main()
