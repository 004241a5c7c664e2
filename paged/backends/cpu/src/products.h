// The two products of attention, blocked over registers.
//
// `dots`: logits of few queries, rows times rows, straight from the cache or converted before. Each key
// is loaded once for up to four queries.
// `multiply`: rows times a matrix, for weights times values, and for logits of many queries over keys
// that were packed as columns. A block of the result stays in registers over all that is summed.
#pragma once

#include <type_traits>

#include "ahead.h"
#include "numbers.h"

namespace paged {
namespace {

// Rows and vectors of the block of a result. AVX-512 has 32 registers: 24 for the block, 4 for a row of
// the matrix, one for a number of the other; AVX2 has 16: 12, 2 and one. NEON has 32 too, but GCC 12
// loads the numbers of all rows before it uses one: 20, 4 and 5, where 24, 4 and 6 would not fit.
#if PAGED_LANES == 8
constexpr int kBlockVectors = 2;
#else
constexpr int kBlockVectors = 4;
#endif
#if defined(__aarch64__)
constexpr int kBlockRows = 5;
#else
constexpr int kBlockRows = 6;
#endif
constexpr int64_t kBlockColumns = kBlockVectors * kLanes;

// Rows at addresses of their own: those of a cache.
template <typename T>
struct ScatteredRows {
  using Type = T;
  const typename T::Stored* base;
  const int64_t* offsets;
  PAGED_INLINE const typename T::Stored* operator[](int64_t row) const {
    return base + offsets[row];
  }
};

// Rows of a buffer.
struct EvenRows {
  using Type = Float32;
  const float* base;
  int64_t step;
  PAGED_INLINE const float* operator[](int64_t row) const { return base + row * step; }
};

// Whether two vectors of bfloat16 are multiplied as they are, pairs of products added in float32:
// twice the products of an instruction, and nothing to convert.
#if defined(__AVX512BF16__) && PAGED_LANES == 16
constexpr bool kMultipliesBFloat16 = true;
PAGED_INLINE Floats add_products(Floats sum, const uint16_t* a, const uint16_t* b) {
  return (Floats)_mm512_dpbf16_ps(
      (__m512)sum, (__m512bh)_mm512_loadu_si512(a), (__m512bh)_mm512_loadu_si512(b));
}
#else
constexpr bool kMultipliesBFloat16 = false;
PAGED_INLINE Floats add_products(Floats sum, const uint16_t*, const uint16_t*) { return sum; }
#endif

// Keys that `dots` takes at once: one vector of sums for all queries, or, where registers hold that
// many, one for each query. NEON's short vectors need the latter: with four sums at a time products
// would wait for each other.
#if defined(__aarch64__)
template <int kRows>
constexpr int kKeysOfRows = kLanes;
#else
template <int kRows>
constexpr int kKeysOfRows = kLanes / kRows;
#endif

// What a logit takes beside its products, in products: the sum over lanes.
constexpr int64_t kSumWork = 32;

// logits[r][k] = queries[r] . keys[k] for kRows queries and kKeysOfRows<kRows> keys. Queries in bfloat16
// only for keys in it, where such are multiplied, and for widths that are multiples of 2 * kLanes.
template <int kRows, typename Query, typename Rows>
PAGED_INLINE void dot_block(
    const Query* queries, int64_t query_step, const Rows& keys, int64_t key, int64_t dim,
    float* logits, int64_t logit_step, const Fetch& fetch) {
  using T = typename Rows::Type;
  constexpr int kKeys = kKeysOfRows<kRows>;
  constexpr bool kIsNarrow = std::is_same_v<Query, uint16_t>;
  constexpr int64_t kStep = kIsNarrow ? 2 * kLanes : kLanes;
  Floats products[kRows * kKeys];
  for (int i = 0; i < kRows * kKeys; ++i) products[i] = Floats{};
  const typename T::Stored* at[kKeys];
  for (int k = 0; k < kKeys; ++k) at[k] = keys[key + k];
  const Query* query[kRows];
  for (int r = 0; r < kRows; ++r) query[r] = queries + r * query_step;
  const int64_t whole = dim / kLanes * kLanes;
  // What is fetched with each of the keys comes before its part of the width.
  const int64_t between = (whole / kStep + kKeys - 1) / kKeys * kStep;
  const uint64_t parts = fetch.beside(kRows * (dim + kSumWork));
  int64_t d = 0;
  for (int fetched = 0; fetched < kKeys; ++fetched) {
    fetch.row(key + fetched, parts);
    const int64_t end = whole - d < between ? whole : d + between;
    for (; d < end; d += kStep) {
      if constexpr (kIsNarrow) {
        for (int r = 0; r < kRows; ++r) {
          for (int k = 0; k < kKeys; ++k) {
            Floats& product = products[r * kKeys + k];
            product = add_products(product, query[r] + d, at[k] + d);
          }
        }
      } else {
        Floats held[kKeys];
        for (int k = 0; k < kKeys; ++k) held[k] = T::read(at[k] + d);
        for (int r = 0; r < kRows; ++r) {
          const Floats some = load<Floats>(query[r] + d);
          for (int k = 0; k < kKeys; ++k) products[r * kKeys + k] += some * held[k];
        }
      }
    }
  }
  if (whole < dim) {
    for (int k = 0; k < kKeys; ++k) {
      const Floats held = read_some<T>(at[k] + whole, dim - whole);
      for (int r = 0; r < kRows; ++r) {
        products[r * kKeys + k] += load<Floats>(query[r] + whole) * held;
      }
    }
  }
  Floats totals[kRows * kKeys / kLanes];
  for (int i = 0; i < kRows * kKeys; i += kLanes) totals[i / kLanes] = sums(products + i);
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(logits + r * logit_step, (const float*)totals + r * kKeys, kKeys * 4);
  }
}

template <int kRows, typename Query, typename Rows>
PAGED_INLINE void dot_rows(
    const Query* queries, int64_t query_step, const Rows& keys, int64_t count, int64_t dim,
    float* logits, int64_t logit_step, Fetch fetch) {
  constexpr int kKeys = kKeysOfRows<kRows>;
  for (int64_t key = 0; key < count; key += kKeys) {
    dot_block<kRows>(queries, query_step, keys, key, dim, logits + key, logit_step, fetch);
  }
}

// Queries are padded with zeros to whole vectors. `keys` has rows up to a multiple of kLanes of
// `count`, and so has each row of logits.
template <typename Query, typename Rows>
void dots(
    const Query* queries, int64_t query_step, int64_t rows, const Rows& keys, int64_t count,
    int64_t dim, float* logits, int64_t logit_step, Fetch fetch) {
  for (int64_t r = 0; r < rows;) {
    const Query* some = queries + r * query_step;
    float* at = logits + r * logit_step;
    if (kLanes >= 4 && rows - r >= 4) {
      dot_rows<kLanes >= 4 ? 4 : 1>(
          some, query_step, keys, count, dim, at, logit_step, fetch);
      r += 4;
    } else if (kLanes >= 2 && rows - r >= 2) {
      dot_rows<kLanes >= 2 ? 2 : 1>(
          some, query_step, keys, count, dim, at, logit_step, fetch);
      r += 2;
    } else {
      dot_rows<1>(some, query_step, keys, count, dim, at, logit_step, fetch);
      r += 1;
    }
    fetch = fetch.again();
  }
}

// One block: result[r][..] = kept[r] * result[r][..] + the sum over k of left[r][k] * right[k][..].
template <int kRows, int kVectors, typename Rows>
PAGED_INLINE void multiply_block(
    const float* left, int64_t left_step, const Rows& right, int64_t column, int64_t count,
    const float* kept, float* result, int64_t result_step, Fetch fetch) {
  using T = typename Rows::Type;
  Floats block[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      block[r][v] = kept == nullptr
                        ? Floats{}
                        : kept[r] * load<Floats>(result + r * result_step + v * kLanes);
    }
  }
  const uint64_t parts = fetch.beside(kRows * kVectors * kLanes);
  for (int64_t k = 0; k < count; ++k) {
    const typename T::Stored* at = right[k] + column;
    fetch.row(k, parts);
    Floats row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = T::read(at + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const float weight = left[r * left_step + k];
      for (int v = 0; v < kVectors; ++v) block[r][v] += weight * row[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      store(result + r * result_step + v * kLanes, block[r][v]);
    }
  }
}

// The last entries of each row, fewer than kLanes.
template <typename Rows>
PAGED_INLINE void multiply_rest(
    const float* left, int64_t left_step, int64_t rows, const Rows& right, int64_t column,
    int64_t rest, int64_t count, const float* kept, float* result, int64_t result_step) {
  for (int64_t r = 0; r < rows; ++r) {
    float* at = result + r * result_step;
    Floats total = kept == nullptr ? Floats{} : kept[r] * load<Floats>(at);
    for (int64_t k = 0; k < count; ++k) {
      total += left[r * left_step + k] * read_some<typename Rows::Type>(right[k] + column, rest);
    }
    store(at, total);
  }
}

template <int kVectors, typename Rows>
PAGED_INLINE void multiply_columns(
    const float* left, int64_t left_step, int64_t rows, const Rows& right, int64_t column,
    int64_t count, const float* kept, float* result, int64_t result_step, Fetch fetch) {
  for (int64_t r = 0; r < rows;) {
    const float* some = left + r * left_step;
    const float* some_kept = kept == nullptr ? nullptr : kept + r;
    float* at = result + r * result_step;
#define PAGED_ROWS(n)                                                               \
  multiply_block<n, kVectors>(                                                      \
      some, left_step, right, column, count, some_kept, at, result_step, fetch);    \
  r += n
    if (rows - r >= kBlockRows) {
      PAGED_ROWS(kBlockRows);
    } else if (rows - r >= 4) {
      PAGED_ROWS(4);
    } else if (rows - r >= 2) {
      PAGED_ROWS(2);
    } else {
      PAGED_ROWS(1);
    }
#undef PAGED_ROWS
    fetch = fetch.again();
  }
}

// result = kept * result + left * right, `width` columns; without `kept`, left * right alone. Rows of
// the result have room for whole vectors. `fetch` is told of each row of `right`.
template <typename Rows>
void multiply(
    const float* left, int64_t left_step, int64_t rows, const Rows& right, int64_t width,
    int64_t count, const float* kept, float* result, int64_t result_step, Fetch fetch) {
  int64_t column = 0;
  const int64_t whole = width / kLanes * kLanes;
  for (; column + kBlockColumns <= whole; column += kBlockColumns) {
    multiply_columns<kBlockVectors>(
        left, left_step, rows, right, column, count, kept, result + column, result_step, fetch);
    fetch = fetch.again();
  }
  if (kBlockVectors > 2 && column + 2 * kLanes <= whole) {
    multiply_columns<2>(
        left, left_step, rows, right, column, count, kept, result + column, result_step, fetch);
    column += 2 * kLanes;
    fetch = fetch.again();
  }
  if (column + kLanes <= whole) {
    multiply_columns<1>(
        left, left_step, rows, right, column, count, kept, result + column, result_step, fetch);
    column += kLanes;
  }
  if (column < width) {
    multiply_rest(
        left, left_step, rows, right, column, width - column, count, kept, result + column,
        result_step);
  }
}

}  // namespace
}  // namespace paged
