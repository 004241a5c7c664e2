"""Where keys and values lie in a token's 32-bit words, and how a kernel takes them out.

A token of layout `pallas` or `tpu_packed` is rows K0 V0 K1 V1 ... of `lanes` numbers. A TPU keeps
as many neighbouring rows in one 32-bit word as fit: with 16-bit storage a word of row h holds K of
head h in its low half and V in its high half; with 8-bit storage it holds K and V of two heads.
The words of one head in consecutive tokens are a strided load of whole registers, which costs
nothing beyond a plain one; taking sublanes out of bfloat16 registers would cost several operations
a token.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Float

from paged.dtypes import storage_dtype

KEY, VALUE = 0, 1

_WORD_BYTES = 4
_LANES = 128
_SUBLANES = 8
_MXU_WIDTH = 256


@dataclass(frozen=True, slots=True)
class Cells:
    """The shape of one token in the cache.

    Attributes:
        num_kv_heads: KV heads, padding not counted.
        rows: rows of a token as stored, padding included.
        lanes: numbers in a row as stored.
        dtype: storage type by name.
        by_value: whether values are reinterpreted, not refs: `InterpretParams` knows only those.
        is_interpreted: whether an interpreter runs the kernel: none knows how to store through a
            reinterpreted ref.
    """

    num_kv_heads: int
    rows: int
    lanes: int
    dtype: str
    by_value: bool = False
    is_interpreted: bool = False

    @property
    def packing(self) -> int:
        """Rows that share a word."""
        return _WORD_BYTES // storage_dtype(self.dtype).itemsize

    @property
    def words(self) -> int:
        """Words of a token in each lane."""
        return self.rows // self.packing

    @property
    def parts(self) -> int:
        """Parts of a row, each of 128 lanes: Mosaic strides over rows of so many only.

        In VMEM a token's words of one part stand before those of the next, put there by the copies:
        one of each part and block.
        """
        return max(1, self.lanes // _LANES)

    @property
    def pitch(self) -> int:
        """Words from one token to the next in VMEM.

        A stride of a multiple of 8 words meets one bank again and again: such a load takes two to
        four instructions, and an odd stride takes one (counted for strides 2 to 17 on v4 to v7x).
        """
        words = self.parts * self.words
        return words + 1 if words % _SUBLANES == 0 else words

    @property
    def heads_per_step(self) -> int:
        """KV heads in one matrix product.

        Two heads of 128 side by side fill the 256 rows of a v6e or v7x matrix unit, and two groups
        of 4 query heads the 8 sublanes of a register. Queries are then block-diagonal.
        """
        wanted = _MXU_WIDTH // self.lanes if self.lanes % 128 == 0 else 1
        return wanted if wanted and self.num_kv_heads % wanted == 0 else 1

    @property
    def vmem_bytes_per_token(self) -> int:
        """Bytes of a token in VMEM."""
        return self.pitch * _LANES * _WORD_BYTES

    @property
    def value_lanes(self) -> int:
        """Numbers of a value as the kernel computes it."""
        return self.lanes

    def tokens(self, data: jax.Array) -> jax.Array:
        """The cache as the kernel reads it, `[num_blocks, block_size, *token, lanes]`.

        The bytes lie in this order already: on a TPU this is no copy (asserted in the tests).
        """
        return data.reshape(*data.shape[:2], self.words, self.packing, self.lanes)

    def buffer_shape(self, tokens: int) -> tuple[int, ...]:
        """Tokens in VMEM, a pitch apart."""
        return (tokens, self.pitch, self.packing, self.lanes // self.parts)

    def take(
        self, buffer: Any, head: int, kind: int, dtype: Any, seen: Any = None
    ) -> Float[jax.Array, "tokens lanes"]:
        """Keys or values of one head.

        Args:
            buffer: ref `[tokens, pitch, packing, lanes of a part]`.
            head: KV head.
            kind: `KEY` or `VALUE`.
            dtype: of the result.
            seen: `[tokens, lanes]` bool; what is not seen becomes 0. None for all.
        """
        row = 2 * head + kind
        word, part = divmod(row, self.packing)
        places = range(word, self.parts * self.words, self.words)
        loaded = jnp.concatenate([self._words(buffer, place) for place in places], axis=1)
        if seen is not None:
            loaded = jnp.where(seen, loaded, jnp.zeros_like(loaded))
        if self.packing == 1:
            return loaded.astype(dtype)
        bits = 32 // self.packing
        shifted = loaded if part == 0 else lax.shift_right_logical(loaded, jnp.uint32(bits * part))
        if self.dtype == "bfloat16":
            half = lax.bitcast_convert_type(shifted.astype(jnp.uint16), jnp.bfloat16)
            return half.astype(dtype)
        if self.dtype == "int8":
            left = lax.shift_left(lax.bitcast_convert_type(shifted, jnp.int32), jnp.int32(24))
            return lax.shift_right_arithmetic(left, jnp.int32(24)).astype(jnp.float32).astype(dtype)
        return from_float8(shifted & jnp.uint32(0xFF), self.dtype).astype(dtype)

    def blank(self, buffer: Any, begin: Any, end: Any) -> None:
        """Zeroes the tokens of a buffer that are not in `[begin, end)`."""
        if self.is_interpreted:
            token = lax.broadcasted_iota(jnp.int32, buffer.shape, 0)
            inside = jnp.logical_and(token >= begin, token < end)
            buffer[...] = jnp.where(inside, buffer[...], jnp.zeros_like(buffer[...]))
            return
        words = self._flat(buffer)
        row = lax.broadcasted_iota(jnp.int32, words.shape, 0)
        inside = jnp.logical_and(row >= begin * self.pitch, row < end * self.pitch)
        words[...] = jnp.where(inside, words[...], jnp.zeros_like(words[...]))

    def _flat(self, buffer: Any) -> Any:
        """Ref `[tokens * pitch, lanes of a part]` of words."""
        words = buffer if self.packing == 1 else buffer.bitcast(jnp.uint32)
        return words.reshape(buffer.shape[0] * self.pitch, buffer.shape[-1])

    def _words(self, buffer: Any, word: int) -> jax.Array:
        """`[tokens, lanes of a part]` words."""
        tokens = buffer.shape[0]
        if self.by_value:
            rows = buffer[:, word]
            return rows[:, 0] if self.packing == 1 else pltpu.bitcast(rows, jnp.uint32)[:, 0]
        rows = self._flat(buffer)
        return rows[pl.ds(word, tokens, stride=self.pitch), :]


def from_float8(byte: jax.Array, dtype: str) -> jax.Array:
    """The value of an 8-bit float in the low byte of a word, as float32.

    By its bits: which generations convert such types differs, and this compiles on all. Exponent
    and mantissa move to where float32 has them, and a factor makes up for the other bias. float32
    flushes subnormal numbers to zero here, so that those of the small type are made from integers.
    """
    mantissa_bits, bias, largest = {"float8_e4m3fn": (3, 7, 0x7E), "float8_e5m2": (2, 15, 0x7B)}[
        dtype
    ]
    magnitude = byte & jnp.uint32(0x7F)
    normal = lax.bitcast_convert_type(
        lax.shift_left(magnitude, jnp.uint32(23 - mantissa_bits)), jnp.float32
    ) * jnp.float32(2.0 ** (127 - bias))
    whole = lax.bitcast_convert_type(magnitude, jnp.int32)
    subnormal = whole.astype(jnp.float32) * jnp.float32(2.0 ** (1 - bias - mantissa_bits))
    value = jnp.where(whole < (1 << mantissa_bits), subnormal, normal)
    infinity = jnp.float32(jnp.inf) if dtype == "float8_e5m2" else jnp.float32(jnp.nan)
    value = jnp.where(whole > largest, jnp.where(whole == largest + 1, infinity, jnp.nan), value)
    is_negative = lax.bitcast_convert_type(byte, jnp.int32) > 0x7F
    return jnp.where(is_negative, -value, value)
