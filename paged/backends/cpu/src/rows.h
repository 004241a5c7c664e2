// Tiles of keys and values as rows of floats, and as packed columns.
#pragma once

#include "products.h"

namespace paged {
namespace {

// Where the keys of a tile lie, head 0, in elements. Padded with the last one to whole vectors, so
// that no product needs to know where a tile ends; what it gives there is masked.
PAGED_INLINE void find_keys(
    const Attend& call, int64_t seq, int64_t begin, int64_t count, int64_t* offsets) {
  const int32_t* table = call.table + seq * call.table_width;
  int64_t column = begin / call.block_size, slot = begin % call.block_size;
  for (int64_t k = 0; k < count; ++k) {
    offsets[k] = table[column] * call.strides.block + slot * call.strides.slot;
    if (++slot == call.block_size) {
      slot = 0;
      ++column;
    }
  }
  for (int64_t k = count; k % kLanes != 0; ++k) offsets[k] = offsets[count - 1];
}

// Rows of the cache as floats. An entry of a row is `step` from the one before.
template <typename T>
void convert_rows(
    const typename T::Stored* base, const int64_t* offsets, int64_t count, int64_t width,
    int64_t step, float* rows, int64_t row_step) {
  for (int64_t k = 0; k < count; ++k) {
    const typename T::Stored* at = base + offsets[k];
    float* row = rows + k * row_step;
    if (step != 1) {
      for (int64_t d = 0; d < width; ++d) row[d] = decoded<T>(at + d * step);
      continue;
    }
    const int64_t whole = width / kLanes * kLanes;
    for (int64_t d = 0; d < whole; d += kLanes) store(row + d, T::read(at + d));
    if (whole < width) store(row + whole, read_some<T>(at + whole, width - whole));
  }
}

// Keys as columns: panels of kBlockColumns keys, in each panel one row for each entry of a key.
template <typename Rows>
void pack_columns(const Rows& keys, int64_t count, int64_t dim, float* panels) {
  using T = typename Rows::Type;
  for (int64_t key = 0; key < count; key += kLanes) {
    float* panel = panels + key / kBlockColumns * kBlockColumns * dim + key % kBlockColumns;
    for (int64_t d = 0; d < dim; d += kLanes) {
      const int64_t some = dim - d < kLanes ? dim - d : kLanes;
      Floats square[kLanes];
      for (int k = 0; k < kLanes; ++k) {
        const auto* at = keys[key + k] + d;
        square[k] = some == kLanes ? T::read(at) : read_some<T>(at, some);
      }
      transpose(square);
      for (int64_t i = 0; i < some; ++i) store(panel + (d + i) * kBlockColumns, square[i]);
    }
  }
}

// Logits of many queries: the product of queries and packed keys.
PAGED_INLINE void packed_logits(
    const float* queries, int64_t query_step, int64_t rows, const float* panels, int64_t count,
    int64_t dim, float* logits, int64_t logit_step) {
  Fetch nothing;
  for (int64_t key = 0; key < count; key += kBlockColumns) {
    const EvenRows panel{panels + key * dim, kBlockColumns};
    const int64_t left = count - key;
    const int64_t width = (left + kLanes - 1) / kLanes * kLanes;
    multiply(
        queries, query_step, rows, panel, width < kBlockColumns ? width : kBlockColumns, dim, nullptr,
        logits + key, logit_step, nothing);
  }
}

}  // namespace
}  // namespace paged
