"""A layout: the order of named axes in which a KV cache lies in memory.

The axes are

    block    physical block                    kv      keys (0) and values (1)
    slot     token within a block              head    KV head
    dim      entry of a key or a value         latent  entry of an MLA latent

A pattern lists them outermost first, in einops' notation; parentheses merge axes into one array
dimension. Shape, views, write, gather, page bytes, sharding and conversion all follow from it.

A layout may pad its last two dimensions, for hardware that keeps them in tiles anyway. Padding
holds zeros: allocation and conversion put them there, a write keeps them, kernels rely on them.
An array with padding does not tell what it holds (a head_dim of 64 and one of 128 look the same),
so that whoever reads from it says how many heads, how wide.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import einops
import numpy as np

from paged.dtypes import dtype_name, is_quantized, storage_dtype
from paged.layouts import arrays
from paged.spec import KVCacheSpec

ArrayT = TypeVar("ArrayT")

_KV_AXES = frozenset({"kv", "block", "slot", "head", "dim"})
_LATENT_AXES = frozenset({"block", "slot", "latent"})
_KEYS_AND_VALUES = 2
_PARENTHESES = re.compile(r"\(([^()]*)\)")

# A TPU keeps the two innermost dimensions of an array in tiles of 8 rows by 128 lanes. The last
# dimension is padded to whole lanes. Up to 8 rows XLA takes a shorter tile, a power of two that
# is no smaller than the number of values sharing a 32-bit word (tiles of the second level).
# Source: https://openxla.org/xla/tiled_layout; figures checked against libtpu 0.0.52, v5e and v6e,
# row-major arrays of 1 to 40 rows, through memory_analysis().argument_size_in_bytes.
_TPU_LANES = 128
_TPU_ROWS = 8
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """How the blocks of a KV cache lie in memory.

    Attributes:
        name: what users call it.
        pattern: the axes, outermost first, for example "block slot (head kv) dim".
        lanes: the last dimension is padded to a multiple of this.
        words: whether the dimension before the last is padded to whole 32-bit words and split in
            two: words, and the values that share a word.

    Raises:
        ValueError: the pattern does not name each axis of a K/V or of a latent cache once, or it
            merges axes whose sizes could not be told from the product (only kv, which is 2, may
            be merged with another, and block and slot stand alone). Or it pads block or slot, or
            a dimension in which padding would come between keys and values.
    """

    name: str
    pattern: str
    lanes: int = 1
    words: bool = False

    def __post_init__(self) -> None:
        axes = self.axes
        if frozenset(axes) not in (_KV_AXES, _LATENT_AXES) or len(set(axes)) != len(axes):
            raise ValueError(
                f"pattern: got {self.pattern!r}, expected each of {sorted(_KV_AXES)} once "
                f"or each of {sorted(_LATENT_AXES)} once"
            )
        if _PARENTHESES.sub(r"\1", self.pattern).strip("abcdefghijklmnopqrstuvwxyz "):
            raise ValueError(
                f"pattern: got {self.pattern!r}, expected axis names, spaces and pairs of "
                "parentheses, not nested"
            )
        for axis in ("block", "slot"):
            if (axis,) not in self.dimensions:
                raise ValueError(
                    f"pattern: got {self.pattern!r}, expected {axis!r} as a dimension of its own"
                )
        for dimension in self.dimensions:
            if len(set(dimension) - {"kv"}) > 1 or not dimension:
                raise ValueError(
                    f"pattern: got {self.pattern!r}, where ({' '.join(dimension)}) merges axes "
                    "that could not be told apart again, expected one axis, and kv beside it"
                )
        if isinstance(self.lanes, bool) or not isinstance(self.lanes, int) or self.lanes < 1:
            raise ValueError(f"lanes: got {self.lanes!r}, expected an integer of at least 1")
        padded = self.dimensions[-1:] if self.lanes > 1 else ()
        padded = self.dimensions[-2:] if self.words else padded
        if {("block",), ("slot",)} & set(padded):
            raise ValueError(
                f"pattern: got {self.pattern!r} with lanes {self.lanes} and words {self.words}, "
                "which would pad block or slot"
            )
        # Entries are added at the end: what pads must keep each key beside its value.
        for dimension, is_padded in zip(
            self.dimensions[-2:], (self.words, self.lanes > 1), strict=True
        ):
            if is_padded and dimension[0] == "kv":
                raise ValueError(
                    f"pattern: got {self.pattern!r} with lanes {self.lanes} and words "
                    f"{self.words}, which would pad ({' '.join(dimension)}), expected kv after "
                    "head or dim, as in (dim kv), or in a dimension that is not padded"
                )
        if self.lanes > 1 and self.lanes % 2 and "kv" in self.dimensions[-1]:
            raise ValueError(
                f"lanes: got {self.lanes}, expected an even number where the last dimension is "
                f"({' '.join(self.dimensions[-1])}): keys and values come in pairs"
            )

    @property
    def dimensions(self) -> tuple[tuple[str, ...], ...]:
        """The axes merged into each array dimension, outermost first."""
        spaced = self.pattern.replace("(", " ( ").replace(")", " ) ").split()
        dimensions: list[tuple[str, ...]] = []
        merged: list[str] | None = None
        for token in spaced:
            if token == "(":
                merged = []
            elif token == ")":
                dimensions.append(tuple(merged or ()))
                merged = None
            elif merged is not None:
                merged.append(token)
            else:
                dimensions.append((token,))
        return tuple(dimensions)

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes in memory order, merged ones taken apart."""
        return tuple(axis for dimension in self.dimensions for axis in dimension)

    @property
    def is_latent(self) -> bool:
        """Whether a token keeps one latent (MLA) instead of keys and values."""
        return "latent" in self.axes

    @property
    def is_block_major(self) -> bool:
        """Whether a block is one contiguous range of bytes, so that layouts may share a pool."""
        return self.dimensions[0] == ("block",)

    @property
    def block_axis(self) -> int:
        """The array dimension that counts blocks."""
        return self.dimensions.index(("block",))

    @property
    def sharding_axis(self) -> int | None:
        """The array dimension to shard over KV heads; None where there is none (MLA)."""
        for index, dimension in enumerate(self.dimensions):
            if dimension[0] == "head":
                # Words take two dimensions in the place of one, and the last stands behind both.
                return index + (self.words and index == len(self.dimensions) - 1)
        return None

    @property
    def is_padded(self) -> bool:
        """Whether an array may be larger than what it holds."""
        return self.lanes > 1 or self.words

    def refusals(self, spec: KVCacheSpec) -> list[str]:
        """Why this layout cannot hold such a cache; [] means that it can."""
        if spec.is_latent == self.is_latent:
            return []
        held = "one latent per token" if self.is_latent else "keys and values per head"
        asked = "a latent (MLA) cache" if spec.is_latent else "keys and values"
        return [f"layout {self.name} holds {held}, the spec asks for {asked}"]

    def shape(self, num_blocks: int, spec: KVCacheSpec) -> tuple[int, ...]:
        """The array's shape.

        Raises:
            ValueError: the layout cannot hold this spec's cache.
        """
        if reasons := self.refusals(spec):
            raise ValueError(f"layout: {'; '.join(reasons)}")
        size = {
            "block": num_blocks,
            "slot": spec.block_size,
            "head": spec.num_kv_heads,
            "dim": spec.head_dim,
            "latent": spec.head_dim,
            "kv": _KEYS_AND_VALUES,
        }
        plain = tuple(math.prod(size[axis] for axis in dim) for dim in self.dimensions)
        return self._padded_shape(plain, storage_dtype(spec.dtype).itemsize)

    def sizes(self, shape: tuple[int, ...]) -> dict[str, int]:
        """The size of each axis in an array of this layout, by name, padding included.

        Raises:
            ValueError: the shape cannot be one of this layout.
        """
        expected = len(self.dimensions) + self.words
        if len(shape) != expected:
            raise ValueError(
                f"shape: got {tuple(shape)}, expected {expected} dimensions "
                f"for layout {self.name} ({self.pattern})"
            )
        shape = self._merged_shape(shape)
        sizes: dict[str, int] = {}
        for index, (dimension, length) in enumerate(zip(self.dimensions, shape, strict=True)):
            known = _KEYS_AND_VALUES if "kv" in dimension else 1
            if length % known or (dimension == ("kv",) and length != known):
                raise ValueError(
                    f"shape[{index}]: got {length}, expected "
                    f"{'2' if dimension == ('kv',) else 'an even number'} "
                    f"for layout {self.name} ({self.pattern})"
                )
            if "kv" in dimension:
                sizes["kv"] = known
            for axis in dimension:
                if axis != "kv":
                    sizes[axis] = length // known
        return sizes

    def page_bytes(self, spec: KVCacheSpec, *, target: str | None = None) -> int:
        """Bytes of one block in one layer.

        Args:
            spec: what the layer keeps.
            target: "tpu" counts the padding of its tiled memory; None and other platforms keep
                arrays dense.
        """
        shape = list(self.shape(1, spec))
        itemsize = storage_dtype(spec.dtype).itemsize
        if target == "tpu":
            shape[-1] = _round_up(shape[-1], _TPU_LANES)
            shape[-2] = _tpu_rows(shape[-2], itemsize)
        return math.prod(shape) * itemsize

    def holds(self, shape: tuple[int, ...], num_kv_heads: int, head_dim: int) -> bool:
        """Whether an array of this shape is one for so many heads of this width."""
        if self.is_latent and num_kv_heads != 1:
            return False
        sizes = self.sizes(shape)
        size = {**sizes, "head": num_kv_heads, "dim": head_dim, "latent": head_dim}
        plain = tuple(math.prod(size[axis] for axis in dim) for dim in self.dimensions)
        itemsize = _WORD_BYTES // shape[-2] if self.words else 1
        return self._padded_shape(plain, itemsize) == tuple(shape)

    def views(
        self,
        data: ArrayT,
        *,
        value_dim: int | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Keys and values of the whole cache, each `[block, slot, head, dim]`.

        Views of the same memory for numpy and torch. In a latent cache the one head's key is the
        latent and its value the latent's first `value_dim` entries (all of them by default).

        Args:
            data: the cache in this layout.
            value_dim: width of a latent's value.
            num_kv_heads: heads that are no padding; all by default.
            head_dim: entries of a head that are no padding; all by default.
        """
        pair = self._split(data, blocks="block", value_dim=value_dim)
        return _trimmed(pair, num_kv_heads, head_dim)

    def gather(
        self,
        data: ArrayT,
        block_ids: Any,
        *,
        value_dim: int | None = None,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Keys and values of some blocks, each `[*block_ids.shape, slot, head, dim]`.

        Only the named blocks are read. Under JAX an id out of range reads some other block
        (ids are clipped): mask what a table does not own. The other arguments are those of
        `views`.

        Raises:
            ValueError: numpy or torch ids that are no integers, or out of range.
        """
        if not arrays.is_jax(data):
            block_ids = _host_ids(data, block_ids, arrays.shape(data)[self.block_axis])
        taken = arrays.take(data, block_ids, axis=self.block_axis)
        pair = self._split(taken, blocks="...", value_dim=value_dim)
        return _trimmed(pair, num_kv_heads, head_dim)

    def write(self, data: ArrayT, key: Any, value: Any, slot_mapping: Any) -> ArrayT:
        """Scatters new tokens into their slots.

        One scatter, no reshape: in place for numpy and torch, and under JAX where `data` is
        donated. A slot of -1 writes nothing; padding of a slot that is written becomes zero.

        Args:
            data: the cache in this layout.
            key: `[tokens, head, dim]`; for a latent cache `[tokens, 1, latent]`.
            value: `[tokens, head, dim]`; None for a latent cache.
            slot_mapping: `[tokens]` int32 (any integers for numpy, int64 too for torch),
                slot = block * block_size + offset.

        Returns:
            The cache: the same array for numpy and torch, the new one for JAX.

        Raises:
            ValueError: shapes do not fit, a quantised cache is given rows not yet quantised, or
                slots are no integers of one dimension (int32 for a JAX cache), or for numpy and
                torch a slot is past the end. Under JAX such a slot writes nothing.
        """
        sizes = self.sizes(arrays.shape(data))
        rows = self.cells(data, key, value)
        slot_mapping = _checked_slots(data, slot_mapping, sizes["block"], sizes["slot"])
        # One row for many slots would be broadcast without a word.
        if key.shape[0] != slot_mapping.shape[0]:
            raise ValueError(
                f"key: got {key.shape[0]} tokens, expected {slot_mapping.shape[0]} as in "
                "slot_mapping"
            )
        return arrays.scatter(
            data,
            rows,
            slot_mapping,
            block_axis=self.block_axis,
            slot_axis=self.dimensions.index(("slot",)),
        )

    def cells(self, data: Any, key: Any, value: Any) -> Any:
        """New tokens as the cache keeps them, padding included, for whoever writes by itself.

        Args:
            data: the cache in this layout; only its shape and dtype matter.
            key: `[tokens, head, dim]`; for a latent cache `[tokens, 1, latent]`.
            value: `[tokens, head, dim]`; None for a latent cache.

        Returns:
            `[tokens, *the dimensions of data without block and slot]`, in the cache's dtype.

        Raises:
            ValueError: shapes do not fit, or a quantised cache is given rows not yet quantised.
        """
        rows = self._rows(key, value, arrays.shape(data), dtype_name(arrays.dtype(data)))
        return arrays.cast(rows, data)

    def padded(self, plain: Any) -> Any:
        """An array in this layout's pattern, with the padding that it lacks: zeros."""
        itemsize = arrays.dtype(plain).itemsize
        before = arrays.shape(plain)
        merged = self._merged_shape(self._padded_shape(before, itemsize))
        plain = arrays.pad(plain, merged)
        return arrays.reshape(plain, self._padded_shape(before, itemsize))

    def unpadded(self, data: Any, sizes: Mapping[str, int]) -> Any:
        """An array in this layout's pattern, cut to axes of these sizes; a view."""
        merged = arrays.reshape(data, self._merged_shape(arrays.shape(data)))
        last = [math.prod(sizes[axis] for axis in dim) for dim in self.dimensions[-2:]]
        return arrays.cut(merged, *last)

    def _padded_shape(self, plain: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
        """The shape of an array that holds one of the pattern's shape."""
        *outer, rows, width = plain
        width = _round_up(width, self.lanes)
        if not self.words:
            return (*outer, rows, width)
        packing = _WORD_BYTES // itemsize
        return (*outer, -(-rows // packing), packing, width)

    def _merged_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape with words and the values that share one in one dimension again."""
        if not self.words:
            return tuple(shape)
        return (*shape[:-3], shape[-3] * shape[-2], shape[-1])

    def _split(self, data: ArrayT, *, blocks: str, value_dim: int | None) -> tuple[ArrayT, ArrayT]:
        data = arrays.reshape(data, self._merged_shape(arrays.shape(data))) if self.words else data
        pattern = self.pattern.replace("block", blocks)
        if self.is_latent:
            keys: Any = einops.rearrange(data, f"{pattern} -> {blocks} slot 1 latent")  # pyright: ignore[reportArgumentType]
            return keys, keys[..., :value_dim]
        both: Any = einops.rearrange(data, f"{pattern} -> kv {blocks} slot head dim", kv=2)  # pyright: ignore[reportArgumentType]
        return both[0], both[1]

    def check_rows(self, shape: tuple[int, ...], key: Any, value: Any) -> None:
        """Checks the shapes of new tokens against a cache of this shape.

        Raises:
            ValueError: naming the argument, what it is and what was expected.
        """
        if (value is None) != self.is_latent:
            raise ValueError(
                f"value: got {'None' if value is None else 'an array'}, layout {self.name} "
                f"expects {'None (the key is the latent)' if self.is_latent else 'an array'}"
            )
        sizes = self.sizes(shape)
        expected = (sizes.get("head", 1), sizes["latent" if self.is_latent else "dim"])
        for name, rows in (("key", key), ("value", value)):
            if rows is None:
                continue
            does_fit = len(rows.shape) == 3 and (not self.is_latent or rows.shape[1] == 1)
            if not does_fit or not self.holds(shape, *rows.shape[1:]):
                raise ValueError(
                    f"{name}: got shape {tuple(rows.shape)}, expected (tokens, "
                    f"{expected[0]}, {expected[1]}) (tokens, num_kv_heads, head_dim)"
                )
        if value is not None and value.shape[0] != key.shape[0]:
            raise ValueError(
                f"value: got {value.shape[0]} tokens, expected {key.shape[0]} as in key"
            )
        if value is not None and tuple(value.shape) != tuple(key.shape):
            # Where the layout pads, both may fit.
            raise ValueError(
                f"value: got shape {tuple(value.shape)}, expected {tuple(key.shape)} as key has"
            )

    def _rows(self, key: Any, value: Any, shape: tuple[int, ...], storage: str) -> Any:
        """The new tokens, `[tokens, *dimensions of this layout without block and slot]`."""
        self.check_rows(shape, key, value)
        for name, array in (("key", key), ("value", value)):
            if array is not None and is_quantized(storage) and dtype_name(array.dtype) != storage:
                raise ValueError(
                    f"{name}: got dtype {dtype_name(array.dtype)}, expected {storage}: quantise "
                    "rows before they are written"
                )
        if self.is_latent:
            rows = key[:, 0, :]
        else:
            inner = self.pattern.replace("block", "").replace("slot", "")
            rows = einops.rearrange([key, value], f"kv token head dim -> token {inner}")
        if not self.is_padded:
            return rows
        # Padding counts the storage's bytes; the rows may still be of a wider type.
        wanted = [shape[axis] for axis in range(len(shape)) if axis not in self._outer_axes]
        merged = self._merged_shape((rows.shape[0], *wanted))
        return arrays.reshape(arrays.pad(rows, merged), (rows.shape[0], *wanted))

    @property
    def _outer_axes(self) -> tuple[int, int]:
        return self.block_axis, self.dimensions.index(("slot",))


def _trimmed(
    pair: tuple[Any, Any], num_kv_heads: int | None, head_dim: int | None
) -> tuple[Any, Any]:
    """Keys and values without padding."""
    key, value = (array[..., :num_kv_heads, :head_dim] for array in pair)
    return key, value


def _is_index(array: Any, *, like: Any) -> bool:
    """Whether this is an integer array that may index a numpy or torch one."""
    if not hasattr(array, "dtype"):
        return False
    # torch takes 8-bit indices for masks, and no 16-bit ones.
    if arrays.is_torch(array) or arrays.is_torch(like):
        return dtype_name(array.dtype) in ("int32", "int64")
    return np.dtype(array.dtype).kind in "iu"


def _host_ids(data: Any, block_ids: Any, num_blocks: int) -> Any:
    if not arrays.is_torch(block_ids):
        block_ids = np.asarray(block_ids)
    if not _is_index(block_ids, like=data):
        raise ValueError(f"block_ids: got dtype {block_ids.dtype}, expected int32 or int64")
    is_wrong = (block_ids < 0) | (block_ids >= num_blocks)
    if is_wrong.any():
        index = [int(where) for where in np.argwhere(np.asarray(is_wrong.tolist()))[0]]
        raise ValueError(
            f"block_ids{index if index else ''}: got {int(block_ids[tuple(index)])}, expected "
            f"0 <= id < {num_blocks}"
        )
    return block_ids


def _checked_slots(data: Any, slots: Any, num_blocks: int, block_size: int) -> Any:
    """The slots, checked against a cache; in a type wide enough to compute with."""
    what = f"{type(slots).__name__} without a dtype"
    if hasattr(slots, "dtype"):
        what = f"{dtype_name(slots.dtype)}{tuple(slots.shape)}"
    on_jax = arrays.is_jax(data)
    # JAX would cut wider integers to 32 bits, so that they name other slots.
    fits = hasattr(slots, "dtype") and (
        dtype_name(slots.dtype) == "int32" if on_jax else _is_index(slots, like=data)
    )
    if not fits or len(slots.shape) != 1:
        accepted = "int32" if on_jax else "int32 or int64"
        raise ValueError(f"slot_mapping: got {what}, expected {accepted} of one dimension")
    if on_jax or not slots.shape[0]:
        return slots
    if int(slots.max()) >= num_blocks * block_size:
        token = int(slots.argmax())
        raise ValueError(
            f"slot_mapping[{token}]: got {int(slots[token])}, expected less than "
            f"{num_blocks * block_size} ({num_blocks} blocks of {block_size} slots)"
        )
    # A narrow type does not hold the block size, by which slots are divided.
    return slots.astype(np.int64) if isinstance(slots, np.ndarray) else slots


def _tpu_rows(rows: int, itemsize: int) -> int:
    if rows > _TPU_ROWS:
        return _round_up(rows, _TPU_ROWS)
    return max(1 << (rows - 1).bit_length(), _WORD_BYTES // itemsize)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
