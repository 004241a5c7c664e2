"""Carries out the manager's copy orders: within the caches, out to the host and back.

A dispatch of its own for each kind of order, and only in steps that have some. As a part of the
step's program the copies would save a dispatch now and then, and double the programs to compile.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Int32

from paged.blocks import Copies, CopyOrders
from paged.engine.programs import Programs
from paged.layouts import KVCache, copy_blocks, put_blocks, take_blocks

Caches = tuple[KVCache, ...]


class BlockMover:
    """Moves blocks of all layers at once. Copies are padded to few sizes: each is a program.

    Args:
        caches: one per layer; only their shapes matter.
        num_host_blocks: blocks on the host.
        programs: where compiled programs are kept.
    """

    def __init__(self, caches: Caches, *, num_host_blocks: int, programs: Programs) -> None:
        self._programs = programs
        self._num_host_blocks = num_host_blocks
        # Block 0 of the host is never used, as on the device.
        self._host: Caches = tuple(
            cache.with_data(_host_array(cache, num_host_blocks + 1)) for cache in caches
        )
        # Blocks on their way to the host. They are read a step later, when they have left anyway.
        self._leaving: list[tuple[Int32[np.ndarray, " blocks"], Sequence[jax.Array]]] = []

    def carry_out(self, caches: Caches, orders: CopyOrders) -> Caches:
        """The caches after all orders, which are dispatched; those given are spent."""
        if len(orders.swap_out):
            ids = _padded(orders.swap_out.src, 0)
            program = self._program("take", take_blocks, caches, ids)
            taken = program(caches, ids)
            for blocks in taken:
                blocks.copy_to_host_async()
            self._leaving.append((orders.swap_out.dst, taken))
        if len(orders.on_device):
            src, dst = _padded(orders.on_device.src, 0), _padded(orders.on_device.dst, -1)
            caches = self._program("copy", copy_blocks, caches, src, dst)(caches, src, dst)
        if len(orders.swap_in):
            caches = self._swap_in(caches, orders.swap_in)
        return caches

    def settle(self) -> None:
        """Store what has left the device; waits for it where it has not."""
        for ids, taken in self._leaving:
            contents = [
                np.asarray(blocks).take(range(ids.size), axis=cache.layout.block_axis)
                for blocks, cache in zip(taken, self._host, strict=True)
            ]
            put_blocks(self._host, ids, contents)
        self._leaving.clear()

    def preparations(self, caches: Caches, *, max_copies: int) -> list[Callable[[], Any]]:
        """Calls that compile what any orders may need, one program each.

        Args:
            caches: as for `carry_out`; they stay as they are.
            max_copies: most blocks that are copied on the device before a step.
        """
        calls: list[Callable[[], Any]] = []
        for ids in _every_size(max_copies):
            calls.append(partial(self._program, "copy", copy_blocks, caches, ids, ids))
        for ids in _every_size(self._num_host_blocks):
            contents = tuple(_host_array(cache, ids.size) for cache in caches)
            calls.append(partial(self._program, "take", take_blocks, caches, ids))
            calls.append(partial(self._program, "put", put_blocks, caches, ids, contents))
        return calls

    def _swap_in(self, caches: Caches, orders: Copies) -> Caches:
        # What came out since the last step may go back at once.
        self.settle()
        ids = _padded(orders.dst, -1)
        contents = take_blocks(self._host, _padded(orders.src, 0))
        return self._program("put", put_blocks, caches, ids, contents)(caches, ids, contents)

    def _program(
        self,
        kind: str,
        function: Callable[..., Any],
        caches: Caches,
        ids: Int32[np.ndarray, " blocks"],
        *rest: Any,
    ) -> Any:
        donated = () if kind == "take" else (0,)
        return self._programs.get(
            (kind, ids.size),
            lambda: jax.jit(function, donate_argnums=donated).lower(caches, ids, *rest),
        )


def _host_array(cache: KVCache, num_blocks: int) -> np.ndarray:
    shape = list(cache.data.shape)
    shape[cache.layout.block_axis] = num_blocks
    return np.empty(shape, cache.data.dtype)


def _every_size(most: int) -> list[Int32[np.ndarray, " padded"]]:
    """Ids of each length to which up to `most` of them are padded."""
    found: list[Int32[np.ndarray, " padded"]] = []
    count = 1
    while count <= most:
        found.append(_padded(np.zeros(count, np.int32), 0))
        count = found[-1].size + 1
    return found


def _padded(ids: Int32[np.ndarray, " blocks"], fill: int) -> Int32[np.ndarray, " padded"]:
    size = 4
    while size < ids.size:
        size *= 4
    padded = np.full(size, fill, np.int32)
    padded[: ids.size] = ids
    return padded
