"""Random loads: requests arrive, grow, fork, speculate, go to the host and back, and leave."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paged.conformance.managers.device import Device
from paged.conformance.managers.serving import Serving

GROUPS: tuple[tuple[Mapping[str, Any], ...], ...] = (
    ({"block_size": 4, "kind": "full"},),
    ({"block_size": 4, "kind": "full"}, {"block_size": 4, "kind": "window", "size": 6}),
    (
        {"block_size": 4, "kind": "latent"},
        {"block_size": 8, "kind": "chunked", "size": 8},
        {"block_size": 2, "kind": "window", "size": 3},
    ),
)
"""Kinds of layers that a walk may have to do with."""


def two_bytes(data: bytes) -> bytes:
    """A hash that collides all the time."""
    return bytes([sum(data) % 3, len(data) % 5])


def serving(
    rng: random.Random, make: Callable[..., Any], device: Callable[[int, int, int], Any] = Device
) -> Serving:
    """A manager of random size and options, and its device."""
    groups = rng.choice(GROUPS)
    options: dict[str, Any] = {
        "host_blocks": rng.choice([0, 8, 24]),
        "watermark": rng.choice([0, 2]),
        "partial_tails": len(groups) == 1 and rng.random() < 0.5,
    }
    if rng.random() < 0.4:
        options["hash"] = two_bytes
    return Serving.of(make, rng.choice([12, 24, 40]), groups, device=device, **options)


def walk(rng: random.Random, work: Serving, steps: int) -> None:
    """A random load, checked after each step."""
    for number in range(steps):
        rng.choices(ACTIONS, WEIGHTS)[0](rng, work, number)
        work.check()
    work.finish()


def _arrive(rng: random.Random, work: Serving, number: int) -> None:
    shared = rng.choice([list(range(20)), [7] * 20, list(range(10)) + [9] * 10])
    own = [rng.randrange(3) for _ in range(rng.randint(0, 5))]
    tokens = shared[: rng.randint(1, 20)] + own
    work.admit(number, tokens, rng.choice(["", "t"]), rng.choice([None, None, 5]))


def _grow(rng: random.Random, work: Serving, number: int) -> None:
    behind = [
        name
        for name in work.running()
        if not work.requests[name].drafts and work.requests[name].slots < work.requests[name].prompt
    ]
    if behind:
        work.grow(rng.choice(behind))
    elif ready := work.running(is_ready=True):
        work.grow(rng.choice(ready), _some(rng, 1, 6))


def _decode(rng: random.Random, work: Serving, number: int) -> None:
    if ready := work.running(is_ready=True):
        chosen = rng.sample(ready, rng.randint(1, len(ready)))
        work.decode(chosen, [rng.randrange(3) for _ in chosen])


def _speculate(rng: random.Random, work: Serving, number: int) -> None:
    if ready := work.running(is_ready=True):
        work.grow(rng.choice(ready), [1], _some(rng, 1, 5))


def _accept(rng: random.Random, work: Serving, number: int) -> None:
    if pending := [name for name in work.running() if work.requests[name].drafts]:
        name = rng.choice(pending)
        work.accept(name, rng.randint(0, work.requests[name].drafts))


def _fork(rng: random.Random, work: Serving, number: int) -> None:
    ready = work.running(is_ready=True)
    if ready and len(work.requests) < 8:
        children = [(number, child) for child in range(rng.randint(1, 2))]
        work.fork(rng.choice(ready), children)


def _leave(rng: random.Random, work: Serving, number: int) -> None:
    if work.requests:
        work.free(rng.choice(list(work.requests)))


def _swap_out(rng: random.Random, work: Serving, number: int) -> None:
    ready = work.running(is_ready=True)
    if ready and len(work.device.host) > 1:
        work.swap_out(rng.choice(ready))


def _swap_in(rng: random.Random, work: Serving, number: int) -> None:
    if away := [name for name, request in work.requests.items() if request.is_swapped]:
        work.swap_in(rng.choice(away))


def _dispatch(rng: random.Random, work: Serving, number: int) -> None:
    work.dispatch(announce=rng.random() < 0.3)


def _end_step(rng: random.Random, work: Serving, number: int) -> None:
    work.end_step()


def _some(rng: random.Random, least: int, most: int) -> list[int]:
    return [rng.randrange(3) for _ in range(rng.randint(least, most))]


Action = Callable[[random.Random, Serving, int], None]

ACTIONS: Sequence[Action] = (
    _arrive,
    _grow,
    _decode,
    _speculate,
    _accept,
    _fork,
    _leave,
    _swap_out,
    _swap_in,
    _dispatch,
    _end_step,
)
WEIGHTS = (3, 2, 4, 2, 1, 1, 1, 1, 1, 2, 1)
"""How often each is chosen."""
