"""Where each number of a cache lies: flat offsets from a layout's pattern, by plain arithmetic."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from paged.layouts import Layout

KEYS, VALUES = 0, 1


@dataclass(frozen=True, slots=True)
class Addresses:
    """The axes of one cache array, taken apart.

    Attributes:
        size: length of each axis, by name.
        stride: how many numbers lie between neighbours along each axis, by name, in an array
            whose rows are contiguous.
    """

    size: Mapping[str, int]
    stride: Mapping[str, int]

    @property
    def width(self) -> int:
        """Numbers in one row: head_dim, or the latent's width."""
        return self.size["latent" if "latent" in self.size else "dim"]

    @property
    def num_kv_heads(self) -> int:
        """KV heads; a latent cache has one."""
        return self.size.get("head", 1)

    def rows(
        self,
        block: int | Int[np.ndarray, " slots"],
        slot: int | Int[np.ndarray, " slots"],
        head: int,
        kind: int,
        width: int | None = None,
    ) -> Int[np.ndarray, "*slots width"]:
        """Flat indices of the key or value row of one head in some slots.

        Args:
            block: physical block, of each slot where there are several.
            slot: one slot of it, or several.
            head: KV head.
            kind: `KEYS` or `VALUES`. In a latent cache both are the latent.
            width: entries of the row; all of them, padding included, by default.
        """
        stride = self.stride
        block, slot = np.asarray(block, np.int64), np.asarray(slot, np.int64)
        start = block * stride["block"] + slot * stride["slot"]
        if "latent" in stride:
            return start[..., None] + np.arange(width or self.width) * stride["latent"]
        start = start + head * stride["head"] + kind * stride["kv"]
        return start[..., None] + np.arange(width or self.width) * stride["dim"]


def addresses(layout: Layout, shape: Sequence[int]) -> Addresses:
    """Sizes and strides of each axis of an array of this shape, padding included.

    Raises:
        ValueError: the shape has another number of dimensions than the pattern.
    """
    if layout.words:
        # Words and the values that share one are one dimension of the pattern.
        shape = (*shape[:-3], shape[-3] * shape[-2], shape[-1])
    # "block slot (head kv) dim" -> ["block", "slot", "head kv", "dim"]
    dimensions = [group or name for group, name in re.findall(r"\(([^)]*)\)|(\w+)", layout.pattern)]
    if len(dimensions) != len(shape):
        raise ValueError(
            f"shape: got {tuple(shape)}, expected {len(dimensions)} dimensions for layout "
            f"{layout.name} ({layout.pattern})"
        )
    size: dict[str, int] = {}
    order: list[str] = []
    for dimension, length in zip(dimensions, shape, strict=True):
        axes = dimension.split()
        order += axes
        # Keys and values are two, so that what merges with them has half of the length.
        for axis in axes:
            size[axis] = 2 if axis == "kv" else length // (2 if "kv" in axes else 1)
    stride: dict[str, int] = {}
    step = 1
    for axis in reversed(order):
        stride[axis] = step
        step *= size[axis]
    return Addresses(size, stride)
