"""A device that holds one number a slot: enough to tell whether a table leads to the right ones.

What a real cache keeps of a token depends on all tokens before it and on whose they are, so the
number is a digest of all that: a block taken over from elsewhere has the wrong numbers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

NOTHING = -1
"""What a slot holds that nobody wrote to."""


def numbers_of(tenant: str, token_ids: Sequence[int]) -> list[int]:
    """What each token's slot must hold: 24 bits, which every type of cache keeps exactly."""
    numbers, number = [], sum(map(ord, tenant)) * 7919 % 2**24
    for token in token_ids:
        number = (number * 1_103_515 + token * 12_345 + 6_789) % 16_777_213
        numbers.append(number)
    return numbers


class Device:
    """Slots of a device and of its host, in numpy. Another one may keep them in a real cache."""

    def __init__(self, num_blocks: int, host_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = np.full((num_blocks, block_size), NOTHING)
        self.host = np.full((host_blocks + 1, block_size), NOTHING)

    def write(self, slots: Sequence[int], numbers: Sequence[int]) -> None:
        """Put numbers into slots."""
        self.blocks.reshape(-1)[list(slots)] = numbers

    def read(self, slots: Sequence[int]) -> list[int]:
        """The numbers in slots."""
        return self.blocks.reshape(-1)[list(slots)].tolist()

    def copy(self, orders: Any) -> None:
        """Carry out copy orders, the three kinds in their order."""
        self.host[orders.swap_out.dst] = self.blocks[orders.swap_out.src]
        self.blocks[orders.on_device.dst] = self.blocks[orders.on_device.src]
        self.blocks[orders.swap_in.dst] = self.host[orders.swap_in.src]
