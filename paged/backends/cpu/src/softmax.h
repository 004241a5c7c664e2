// The online softmax of a tile of logits.
#pragma once

#include <cmath>
#include <limits>

#include "functions.h"

namespace paged {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

PAGED_INLINE Floats capped(Floats logits, float cap) {
  const Floats ratio = logits / cap;
  const Floats size = as_floats(as_words(ratio) & 0x7fffffffu);
  // Far below the cap a logit stays what it is; the ratio may lie below the smallest number.
  return size < 0x1p-12f ? logits : cap * tanh(ratio);
}

// One row: logits of `count` keys, of which it sees [begin, end), become weights; what it does not
// see becomes 0.
//
// Args:
//   scale: what the logits are still to be multiplied with.
//   peak, total: the row's largest logit so far and the sum of its weights.
// Returns: what earlier weights and values are to be multiplied with.
PAGED_INLINE float weigh_row(
    float* logits, int64_t count, int64_t begin, int64_t end, float scale, float cap, float* peak,
    float* total) {
  const Ints lanes = lane_numbers();
  const Floats none = splat(kNone);
  Floats most = none;
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t k = 0; k < padded; k += kLanes) {
    Floats some = load<Floats>(logits + k) * scale;
    if (cap != 0.0f) some = capped(some, cap);
    if (k < begin || k + kLanes > end) {
      const Ints at = lanes + int32_t(k);
      some = select((at >= int32_t(begin)) & (at < int32_t(end)), some, none);
    }
    store(logits + k, some);
    most = larger(some, most);
  }
  const float before = *peak, tile = largest(most);
  const float now = tile > before ? tile : before;
  // A row that has seen no key yet measures from 0: -inf - -inf is NaN.
  const float origin = now == kNone ? 0.0f : now;
  Floats added = {};
  for (int64_t k = 0; k < padded; k += kLanes) {
    const Floats weights = exp(load<Floats>(logits + k) - origin);
    store(logits + k, weights);
    added += weights;
  }
  const float kept = before == now ? 1.0f : exp(splat(before - origin))[0];
  *peak = now;
  *total = *total * kept + sum(added);
  return kept;
}

}  // namespace
}  // namespace paged
