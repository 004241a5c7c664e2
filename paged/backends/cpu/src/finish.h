// From the state of a row to its output and lse.
#pragma once

#include "numbers.h"
#include "softmax.h"

namespace paged {
namespace {

// Divides by the sum of the weights. A row without keys gets 0 and -inf.
PAGED_INLINE void finish_row(
    const Attend& call, int64_t token, int64_t head, const float* weighted, float peak,
    float total) {
  const int64_t row = token * call.heads() + head;
  float factor = 1.0f;
  if (call.sinks != nullptr && peak != kNone) {
    // A sink joins the denominator of rows that see a key.
    const float sink = call.sinks[head];
    const float most = sink > peak ? sink : peak;
    factor = exp(splat(peak - most))[0];
    total = total * factor + exp(splat(sink - most))[0];
    peak = most;
  }
  call.lse[row] = total == 0.0f ? kNone : peak + std::log(total);
  const float divisor = total == 0.0f ? 1.0f : total;
  const float v_scale =
      call.v_scale == nullptr ? 1.0f : call.v_scale[head / call.group * call.v_scale_step];
  with_compute_type(call.query_type, [&](auto type) {
    using Q = decltype(type);
    auto* out = static_cast<typename Q::Stored*>(call.out) + row * call.value_dim;
    for (int64_t d = 0; d < call.value_dim; ++d) {
      out[d] = Q::encoded(weighted[d] * factor / divisor * v_scale);
    }
  });
}

// Puts the parts of a sequence together, in their order.
void merge_parts(const Attend& call, const Item& item) {
  const int64_t start = call.starts[item.seq], query_len = call.starts[item.seq + 1] - start;
  const int64_t rows = query_len * call.heads(), width = call.value_dim;
  const Partials partials(item.partial, item.parts * rows, width);
  const int64_t head_begin = item.head_begin * call.group, head_end = item.head_end * call.group;
  for (int64_t query = 0; query < query_len; ++query) {
    for (int64_t head = head_begin; head < head_end; ++head) {
      // The first part's place takes the sum.
      const int64_t first = query * call.heads() + head;
      float* weighted = partials.out + first * width;
      float peak = partials.peak[first], total = partials.total[first];
      for (int64_t part = 1; part < item.parts; ++part) {
        const int64_t row = part * rows + first;
        const float most = partials.peak[row] > peak ? partials.peak[row] : peak;
        const float origin = most == kNone ? 0.0f : most;
        const float kept = exp(splat(peak - origin))[0];
        const float joined = exp(splat(partials.peak[row] - origin))[0];
        const float* added = partials.out + row * width;
        for (int64_t d = 0; d < width; ++d) weighted[d] = weighted[d] * kept + added[d] * joined;
        total = total * kept + partials.total[row] * joined;
        peak = most;
      }
      finish_row(call, start + query, head, weighted, peak, total);
    }
  }
}

}  // namespace
}  // namespace paged
