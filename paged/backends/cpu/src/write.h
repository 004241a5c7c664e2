// New keys and values into their slots.
#pragma once

#include <type_traits>

#include "numbers.h"

namespace paged {
namespace {

template <typename From, typename To>
void write_row(
    const typename From::Stored* row, typename To::Stored* at, int64_t dim, int64_t step,
    const float* scale) {
  constexpr bool kQuantised = sizeof(typename To::Stored) == 1;
  for (int64_t d = 0; d < dim; ++d) {
    if constexpr (std::is_same_v<From, To>) {
      at[d * step] = row[d];
    } else {
      float number = decoded<From>(row + d);
      if (kQuantised && scale != nullptr) number /= *scale;
      at[d * step] = To::encoded(number);
    }
  }
}

template <typename From, typename To>
void write_tokens(const Write& call, int64_t token_begin, int64_t token_end) {
  const Strides& strides = call.strides;
  const auto* keys = static_cast<const typename From::Stored*>(call.key);
  const auto* values = static_cast<const typename From::Stored*>(call.value);
  for (int64_t token = token_begin; token < token_end; ++token) {
    const int64_t slot = call.slots[token];
    if (slot < 0) continue;
    auto* at = static_cast<typename To::Stored*>(call.cache) +
               slot / call.block_size * strides.block + slot % call.block_size * strides.slot;
    for (int64_t head = 0; head < call.heads; ++head) {
      const int64_t row = (token * call.heads + head) * call.dim;
      auto* key = at + head * strides.head;
      const float* k_scale =
          call.k_scale == nullptr ? nullptr : call.k_scale + head * call.k_scale_step;
      write_row<From, To>(keys + row, key, call.dim, strides.dim, k_scale);
      if (values == nullptr) continue;
      const float* v_scale =
          call.v_scale == nullptr ? nullptr : call.v_scale + head * call.v_scale_step;
      write_row<From, To>(values + row, key + strides.to_value, call.dim, strides.dim, v_scale);
    }
  }
}

void write_any(const Write& call, int64_t token_begin, int64_t token_end) {
  with_compute_type(call.type, [&](auto from) {
    with_type(call.cache_type, [&](auto to) {
      write_tokens<decltype(from), decltype(to)>(call, token_begin, token_end);
    });
  });
}

}  // namespace
}  // namespace paged
