// Vectors of PAGED_LANES floats by the compiler's vector extensions, the same for every processor.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace paged {
namespace {

constexpr int kLanes = PAGED_LANES;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));
typedef int16_t ShortInts __attribute__((vector_size(2 * kLanes)));

#define PAGED_INLINE inline __attribute__((always_inline))

// From and to any address. Not by memcpy: GCC 12 then takes vectors of bytes apart in scalar
// registers.
template <typename V>
struct Unaligned {
  typedef V Vector __attribute__((aligned(1), may_alias));
};

template <typename V>
PAGED_INLINE V load(const void* at) {
  return *static_cast<const typename Unaligned<V>::Vector*>(at);
}

template <typename V>
PAGED_INLINE void store(void* at, V vector) {
  *static_cast<typename Unaligned<V>::Vector*>(at) = vector;
}

PAGED_INLINE Floats splat(float x) { return x - Floats{}; }
PAGED_INLINE Ints splat(int32_t x) { return x - Ints{}; }

PAGED_INLINE Floats as_floats(Words bits) { return (Floats)bits; }
PAGED_INLINE Words as_words(Floats x) { return (Words)x; }

// Where a lane of the mask is set, that of `yes`, elsewhere that of `no`.
PAGED_INLINE Floats select(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }

PAGED_INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

PAGED_INLINE Ints lane_numbers() {
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

// Of each 2 * kStep lanes: the lower kStep of a, then those of b; or the upper ones.
template <int kStep, bool kUpper, int... kLane>
PAGED_INLINE Floats mixed(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(
      a, b,
      (kLane % (2 * kStep) < kStep ? kLane + (kUpper ? kStep : 0)
                                   : kLanes + kLane - (kUpper ? 0 : kStep))...);
}

template <int kStep, bool kUpper>
PAGED_INLINE Floats mixed(Floats a, Floats b) {
  return mixed<kStep, kUpper>(a, b, std::make_integer_sequence<int, kLanes>{});
}

// Adds up the lanes of kLanes vectors: lane i of the result is the sum of vector i.
template <int kStep = 1>
PAGED_INLINE Floats sums(const Floats* vectors) {
  if constexpr (kStep >= kLanes) {
    return vectors[0];
  } else {
    constexpr int kPairs = kLanes / (2 * kStep);
    Floats halved[kPairs];
    for (int i = 0; i < kPairs; ++i) {
      const Floats a = vectors[2 * i], b = vectors[2 * i + 1];
      halved[i] = mixed<kStep, false>(a, b) + mixed<kStep, true>(a, b);
    }
    return sums<2 * kStep>(halved);
  }
}

// kLanes rows of kLanes become columns.
template <int kStep = 1>
PAGED_INLINE void transpose(Floats* rows) {
  if constexpr (kStep < kLanes) {
    for (int i = 0; i < kLanes; ++i) {
      if (i % (2 * kStep) >= kStep) continue;
      const Floats a = rows[i], b = rows[i + kStep];
      rows[i] = mixed<kStep, false>(a, b);
      rows[i + kStep] = mixed<kStep, true>(a, b);
    }
    transpose<2 * kStep>(rows);
  }
}

// Lane i of the result is lane i ^ kStep.
template <int kStep, int... kLane>
PAGED_INLINE Floats swapped(Floats x, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(x, x, (kLane ^ kStep)...);
}

// All lanes of one vector, in pairs.
template <int kStep = 1>
PAGED_INLINE float sum(Floats x) {
  if constexpr (kStep >= kLanes) {
    return x[0];
  } else {
    return sum<2 * kStep>(x + swapped<kStep>(x, std::make_integer_sequence<int, kLanes>{}));
  }
}

template <int kStep = 1>
PAGED_INLINE float largest(Floats x) {
  if constexpr (kStep >= kLanes) {
    return x[0];
  } else {
    const Floats other = swapped<kStep>(x, std::make_integer_sequence<int, kLanes>{});
    return largest<2 * kStep>(larger(x, other));
  }
}

}  // namespace
}  // namespace paged
