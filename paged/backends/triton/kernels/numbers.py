"""From stored numbers to those that are computed with, and back."""

import triton
import triton.language as tl


@triton.jit
def rounded(x, DTYPE: tl.constexpr, FORM: tl.constexpr):
    """float32 to the nearest number of a type, ties to even.

    The interpreter cuts off what bfloat16 has no bits for, so that it is rounded here before.
    """
    if FORM.interpreted:
        if DTYPE == tl.bfloat16:
            bits = x.to(tl.uint32, bitcast=True)
            nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            x = tl.where(x != x, x, nearest.to(tl.float32, bitcast=True))
    return x.to(DTYPE)


@triton.jit
def decoded(x, DTYPE: tl.constexpr, FORM: tl.constexpr):
    """What a cache stores as numbers to compute with; exact.

    Args:
        x: numbers, int8, or the bits of a float8.
        DTYPE: to compute with.
        FORM: see `AttendForm`.
    """
    if FORM.storage == "numbers":
        return x.to(DTYPE)
    elif FORM.storage == "int8":
        return x.to(tl.float32).to(DTYPE)
    elif FORM.storage == "float8_e5m2":
        # The upper half of a float16.
        return (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(DTYPE)
    else:
        tl.static_assert(FORM.storage == "float8_e4m3fn")
        if FORM.native_float8:
            return x.to(tl.float8e4nv, bitcast=True).to(DTYPE)
        else:
            # A float16 has one bit more of exponent, with a bias that is larger by 8.
            bits = ((x & 0x80).to(tl.uint16) << 8) | ((x & 0x7F).to(tl.uint16) << 7)
            number = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
            return tl.where((x & 0x7F) == 0x7F, float("nan"), number).to(DTYPE)


@triton.jit
def kept_in_place(x, FORM: tl.constexpr):
    """x itself, converted where it was loaded and not where a product reads it.

    Triton moves the layout of a product's operand in front of conversions, up to the load: 8-bit
    values are then copied 8 bytes at a time and read from shared memory byte by byte (triton
    3.9.0). An instruction that may have an effect is not moved across.
    """
    if FORM.move == "":
        return x
    elif FORM.move == "ptx":
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2
        )
    else:
        tl.static_assert(FORM.move == "gcn")
        return tl.inline_asm_elementwise(
            "v_mov_b32 $0, $1", "=v,v", [x], dtype=x.dtype, is_pure=False, pack=2
        )


@triton.jit
def anew(number, FORM: tl.constexpr):
    """The 32-bit number itself, as one that the compiler has not seen before.

    It is computed here, neither before nor later, and what is computed from it is not found to be
    known already. Without that 2 of 90 decodes of 8-bit caches held a number throughout the loop
    for which there was no register; now none does (triton 3.9.0, sm_90, 2026-11-30).
    """
    if FORM.move == "ptx":
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [number], dtype=number.dtype, is_pure=False, pack=1
        )
    else:
        return number


@triton.jit
def encoded(x, DTYPE: tl.constexpr, FORM: tl.constexpr):
    """float32 as a cache stores it: rounded to nearest even, clipped where it is quantised.

    Float8 by bits, which is the same on hardware that knows the type and on what does not.
    """
    if FORM.storage == "numbers":
        return rounded(x, DTYPE, FORM)
    elif FORM.storage == "int8":
        # NaN has no place among integers: 0, as XLA has it.
        clipped = tl.minimum(tl.maximum(tl.where(x != x, 0.0, x), -127.0), 127.0)
        # Above 2^23 a float32 has no fraction: adding rounds, subtracting gives the integer.
        return ((clipped + 12582912.0) - 12582912.0).to(tl.int8)
    elif FORM.storage == "float8_e4m3fn":
        return _float8(x, 3, 7, 448.0, 0x7F)
    else:
        tl.static_assert(FORM.storage == "float8_e5m2")
        return _float8(x, 2, 15, 57344.0, 0x7E)


@triton.jit
def _float8(
    x, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr, NAN: tl.constexpr
):
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    size = tl.minimum(tl.abs(x), LARGEST)
    # Normal numbers: round the mantissa where it is, then change the exponent's bias.
    bits = size.to(tl.uint32, bitcast=True)
    dropped: tl.constexpr = 23 - MANTISSA
    half: tl.constexpr = (1 << (dropped - 1)) - 1
    shift: tl.constexpr = (127 - BIAS) << MANTISSA
    normal = ((bits + half + ((bits >> dropped) & 1)) >> dropped) - shift
    # Smaller ones are multiples of one step: adding a power of two rounds to it.
    power: tl.constexpr = 1 << (23 - BIAS + 1 - MANTISSA)
    base: tl.constexpr = (127 + 23 - BIAS + 1 - MANTISSA) << 23
    small = (size + power).to(tl.uint32, bitcast=True) - base
    smallest_normal: tl.constexpr = 2.0 ** (1 - BIAS)
    code = tl.where(size < smallest_normal, small, normal) | sign
    return tl.where(x != x, NAN | sign, code).to(tl.uint8)


@triton.jit
def k_scale_of(k_scale_ptr, head, FORM: tl.constexpr):
    """The scale of a KV head's keys, 1 where there is none."""
    if FORM.k_scale == "none":
        return 1.0
    elif FORM.k_scale == "one":
        return tl.load(k_scale_ptr)
    else:
        tl.static_assert(FORM.k_scale == "heads")
        return tl.load(k_scale_ptr + head)


@triton.jit
def v_scale_of(v_scale_ptr, head, FORM: tl.constexpr):
    """The scale of a KV head's values, 1 where there is none."""
    if FORM.v_scale == "none":
        return 1.0
    elif FORM.v_scale == "one":
        return tl.load(v_scale_ptr)
    else:
        tl.static_assert(FORM.v_scale == "heads")
        return tl.load(v_scale_ptr + head)
