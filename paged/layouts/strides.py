"""A layout as strides: for kernels that take any layout by address alone."""

from dataclasses import dataclass

from paged.layouts.layout import Layout


@dataclass(frozen=True, slots=True)
class KVStrides:
    """Where an entry lies: the sum of its indices times these, in elements of the array.

    Keys begin at the array's first element. Offsets can pass 2^31: add them in 64 bits.

    Attributes:
        block: from one physical block to the next.
        slot: from one token of a block to the next.
        head: from one KV head to the next; 0 for a latent.
        dim: from one entry of a key or value to the next.
        to_value: from a key to its value; 0 for a latent, whose value is its first part.
    """

    block: int
    slot: int
    head: int
    dim: int
    to_value: int


def kv_strides(
    layout: Layout, shape: tuple[int, ...], strides: tuple[int, ...] | None = None
) -> KVStrides:
    """The strides of keys and values in an array of a layout.

    Args:
        layout: any declaration.
        shape: the array's.
        strides: the array's, in elements; those of a contiguous array by default.

    Raises:
        ValueError: strides for another number of dimensions, or of an array in which the words of
            a layout and the values that share one are not one dimension.
    """
    strides = _contiguous(shape) if strides is None else tuple(strides)
    if len(strides) != len(shape):
        raise ValueError(f"strides: got {len(strides)}, expected {len(shape)} as the shape has")
    if layout.words:
        words, packed = strides[-3], strides[-2]
        if words != shape[-2] * packed:
            raise ValueError(
                f"strides: got {words} between words of {shape[-2]} values {packed} apart, "
                f"expected {shape[-2] * packed}"
            )
        strides = (*strides[:-3], packed, strides[-1])
    sizes = layout.sizes(shape)
    found: dict[str, int] = {}
    for dimension, stride in zip(layout.dimensions, strides, strict=True):
        for axis in reversed(dimension):
            found[axis] = stride
            stride *= sizes[axis]
    return KVStrides(
        block=found["block"],
        slot=found["slot"],
        head=found.get("head", 0),
        dim=found["latent" if layout.is_latent else "dim"],
        to_value=found.get("kv", 0),
    )


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
