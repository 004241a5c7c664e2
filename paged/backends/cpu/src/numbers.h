// From stored numbers to float32, and back.
#pragma once

#include <cmath>

#include "call.h"
#include "lanes.h"
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace paged {
namespace {

// Whole numbers of 8 and 16 bits, widened. By name where there is one instruction for it: GCC 12 takes
// `__builtin_convertvector` from bytes to words apart into scalars.
#if defined(__AVX512F__) && PAGED_LANES == 16
PAGED_INLINE Ints widened(Bytes x) { return (Ints)_mm512_cvtepi8_epi32((__m128i)x); }
PAGED_INLINE Words widened(Halves x) { return (Words)_mm512_cvtepu16_epi32((__m256i)x); }
PAGED_INLINE Halves to_halves(Bytes x) { return (Halves)_mm256_cvtepi8_epi16((__m128i)x); }
PAGED_INLINE Floats from_float16(Halves x) { return (Floats)_mm512_cvtph_ps((__m256i)x); }
#elif defined(__AVX2__) && PAGED_LANES == 8
PAGED_INLINE __m128i low_half(int64_t bits) { return _mm_cvtsi64_si128(bits); }
PAGED_INLINE Ints widened(Bytes x) { return (Ints)_mm256_cvtepi8_epi32(low_half((int64_t)x)); }
PAGED_INLINE Words widened(Halves x) { return (Words)_mm256_cvtepu16_epi32((__m128i)x); }
PAGED_INLINE Halves to_halves(Bytes x) { return (Halves)_mm_cvtepi8_epi16(low_half((int64_t)x)); }
PAGED_INLINE Floats from_float16(Halves x) { return (Floats)_mm256_cvtph_ps((__m128i)x); }
#elif defined(__aarch64__) && PAGED_LANES == 4
PAGED_INLINE int16x4_t short_ints(Bytes x) {
  return vget_low_s16(vmovl_s8(vcreate_s8(uint32_t((int32_t)x))));
}
PAGED_INLINE Ints widened(Bytes x) { return (Ints)vmovl_s16(short_ints(x)); }
PAGED_INLINE Words widened(Halves x) { return (Words)vmovl_u16((uint16x4_t)x); }
PAGED_INLINE Halves to_halves(Bytes x) { return (Halves)short_ints(x); }
// Not `vcvt_f32_f16`: to GCC 12 that reads the state of the processor, for which it stores all sums
// that are under way.
PAGED_INLINE Floats from_float16(Halves x) {
  Floats numbers;
  __asm__("fcvtl %0.4s, %1.4h" : "=w"(numbers) : "w"(x));
  return numbers;
}
#else
PAGED_INLINE Ints widened(Bytes x) { return __builtin_convertvector(x, Ints); }
PAGED_INLINE Words widened(Halves x) { return __builtin_convertvector(x, Words); }
PAGED_INLINE Halves to_halves(Bytes x) { return (Halves)__builtin_convertvector(x, ShortInts); }

// No step meets a float32 below the smallest normal one: XLA's threads may take those for 0.
PAGED_INLINE Floats from_float16(Halves x) {
  const Words half = widened(x);
  const Words magnitude = half & 0x7fff, exponent = half & 0x7c00;
  const Words normal = (magnitude << 13) + (112u << 23);
  const Words special = (magnitude << 13) | (255u << 23);
  const Words small = as_words(__builtin_convertvector((Ints)magnitude, Floats) * 0x1p-24f);
  Words bits = exponent == 0x7c00 ? special : normal;
  bits = exponent == 0 ? small : bits;
  return as_floats(bits | ((half & 0x8000) << 16));
}
#endif

PAGED_INLINE Floats from_bfloat16(Halves x) {
#if defined(__aarch64__) && PAGED_LANES == 4
  return (Floats)vshll_n_u16((uint16x4_t)x, 16);
#else
  return as_floats(widened(x) << 16);
#endif
}

// One stored type: `Stored` in memory, `read` kLanes of them, `encoded` one.
struct Float32 {
  using Stored = float;
  static PAGED_INLINE Floats read(const Stored* at) { return load<Floats>(at); }
  static PAGED_INLINE Stored encoded(float x) { return x; }
};

struct BFloat16 {
  using Stored = uint16_t;
  static PAGED_INLINE Floats read(const Stored* at) {
    return from_bfloat16(load<Halves>(at));
  }
  static PAGED_INLINE Stored encoded(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return uint16_t(x != x ? (bits >> 16) | 0x40 : nearest);
  }
};

struct Float16 {
  using Stored = uint16_t;
  static PAGED_INLINE Floats read(const Stored* at) { return from_float16(load<Halves>(at)); }
  static PAGED_INLINE Stored encoded(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return uint16_t(sign | 0x7e00 | ((size >> 13) & 0x3ff));
    if (size >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (size < 0x38800000) {
      // Below 2^-14: a multiple of 2^-24. Adding 0.5 leaves the multiple in the last bits.
      float magnitude;
      std::memcpy(&magnitude, &size, 4);
      magnitude += 0.5f;
      uint32_t rounded;
      std::memcpy(&rounded, &magnitude, 4);
      return uint16_t(sign | (rounded - 0x3f000000));
    }
    return uint16_t(sign | ((size + 0xfff + ((size >> 13) & 1) - (112u << 23)) >> 13));
  }
};

struct Int8 {
  using Stored = int8_t;
  static PAGED_INLINE Floats read(const Stored* at) {
    return __builtin_convertvector(widened(load<Bytes>(at)), Floats);
  }
  static PAGED_INLINE Stored encoded(float x) {
    if (x != x) return 0;  // no place for NaN among integers
    x = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
    // Adding 1.5 * 2^23 rounds to an integer, ties to even.
    return int8_t((x + 12582912.0f) - 12582912.0f);
  }
};

// Rounds to nearest even and clips to the largest finite magnitude, by bits.
template <int kMantissa, int kBias>
PAGED_INLINE uint8_t encoded_float8(float x, float most, uint8_t nan) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = (bits >> 24) & 0x80;
  if (x != x) return uint8_t(sign | nan);
  float size = x < 0 ? -x : x;
  size = size > most ? most : size;
  constexpr int kDropped = 23 - kMantissa;
  if (size < 1.0f / (1 << (kBias - 1))) {
    // Multiples of one step: adding a power of two rounds to it.
    constexpr int kExponent = 23 - kBias + 1 - kMantissa;
    size += float(1u << kExponent);
    std::memcpy(&bits, &size, 4);
    return uint8_t(sign | (bits - (uint32_t(127 + kExponent) << 23)));
  }
  std::memcpy(&bits, &size, 4);
  bits = (bits + (1u << (kDropped - 1)) - 1 + ((bits >> kDropped) & 1)) >> kDropped;
  return uint8_t(sign | (bits - ((127 - kBias) << kMantissa)));
}

struct Float8E4M3 {
  using Stored = uint8_t;
  static PAGED_INLINE Floats read(const Stored* at) {
    // A float16 has one bit more of exponent, with a bias that is larger by 8. Moving the bits up
    // leaves a copy of the sign in that place.
    const Halves half = (to_halves(load<Bytes>(at)) << 7) & 0xbfff;
    const Floats number = from_float16(half) * 256.0f;
    const Words size = as_words(number) & 0x7fffffffu;
    return as_floats(size == 0x43f00000u ? Words{} + 0x7fc00000u : as_words(number));  // 480: NaN
  }
  static PAGED_INLINE Stored encoded(float x) { return encoded_float8<3, 7>(x, 448.0f, 0x7f); }
};

struct Float8E5M2 {
  using Stored = uint8_t;
  static PAGED_INLINE Floats read(const Stored* at) {
    // The upper half of a float16.
    return from_float16(to_halves(load<Bytes>(at)) << 8);
  }
  static PAGED_INLINE Stored encoded(float x) { return encoded_float8<2, 15>(x, 57344.0f, 0x7e); }
};

// The first `count` of kLanes numbers, the rest 0; reads no further.
template <typename T>
PAGED_INLINE Floats read_some(const typename T::Stored* at, int64_t count) {
  typename T::Stored some[kLanes] = {};
  std::memcpy(some, at, size_t(count) * sizeof *at);
  return T::read(some);
}

template <typename T>
PAGED_INLINE float decoded(const typename T::Stored* at) {
  return read_some<T>(at, 1)[0];
}

template <typename F>
PAGED_INLINE void with_type(Type type, F&& use) {
  switch (type) {
    case Type::kFloat32: return use(Float32{});
    case Type::kFloat16: return use(Float16{});
    case Type::kBFloat16: return use(BFloat16{});
    case Type::kFloat8E4M3: return use(Float8E4M3{});
    case Type::kFloat8E5M2: return use(Float8E5M2{});
    case Type::kInt8: return use(Int8{});
  }
}

// Queries, and new keys and values.
template <typename F>
PAGED_INLINE void with_compute_type(Type type, F&& use) {
  switch (type) {
    case Type::kFloat16: return use(Float16{});
    case Type::kBFloat16: return use(BFloat16{});
    default: return use(Float32{});
  }
}

}  // namespace
}  // namespace paged
