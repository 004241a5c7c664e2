#include "schedule.h"

#include <algorithm>

namespace paged {
namespace {

// Keys of a part, for sequences with few queries. A part starts at a multiple of it, whatever the
// batch and the number of threads, so that a sequence's result is the same to the bit alone, in a
// batch, and on any machine. It costs little: 512 keys of 8 heads of 128 are 2 MiB in bfloat16, and
// a part's state for 32 query heads, written once and read once, 16 KiB, under 1 %. In return a
// single sequence of 32,768 keys is 64 pieces of work.
constexpr int64_t kPartKeys = 512;

// The keys of a decode are split, and those of a few queries, up to this many rows (queries times the
// heads of a group). With more there are many pieces anyway, and the parts of a long prefill would
// need more memory than its results.
constexpr int64_t kRowsToSplit = 64;

// Rows of an item. 128 rows pay for the packing of a tile of keys (5 %), and they and their results
// stay in a second-level cache of 256 KiB or more. Fewer rows waste less at the causal edge, where
// an item computes what half of its rows do not see.
constexpr int64_t kItemRows = 128;

// KV heads that an item takes at most: a tile of keys and values of 8 heads is 256 KiB, and with the
// next one, which is fetched meanwhile, half a second-level cache of 1 MiB.
constexpr int64_t kMostHeads = 8;

// Pieces that a thread should find: the last one to finish is then late by an eighth at most.
constexpr int64_t kPiecesPerThread = 8;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Schedule schedule(const Attend& call, int64_t seqs, int64_t threads) {
  Schedule plan;
  const int64_t item_queries = std::max<int64_t>(1, kItemRows / call.group);
  int64_t partial_floats = 0, cuts = 0;
  std::vector<int64_t> partial_at;
  // First all heads together: in most layouts the heads of a token lie beside each other, and
  // memory is read in one go.
  for (int64_t seq = 0; seq < seqs; ++seq) {
    const int64_t query_len = call.starts[seq + 1] - call.starts[seq];
    const int64_t history = call.seq_lens[seq] - query_len;
    const bool is_split = query_len == 1 || query_len * call.group <= kRowsToSplit;
    for (int64_t query = 0; query < query_len; query += item_queries) {
      const int64_t query_end = std::min(query + item_queries, query_len);
      const int64_t key_end = history + query_end;
      const int64_t key_begin =
          call.window == 0 ? 0 : std::max<int64_t>(0, history + query + 1 - call.window);
      Item item{seq, query, query_end, 0, call.kv_heads, key_begin, key_end, 0, 1, nullptr, 0};
      plan.most_queries = std::max(plan.most_queries, query_end - query);
      ++cuts;
      if (!is_split || ceil_div(key_end, kPartKeys) - key_begin / kPartKeys <= 1) {
        plan.items.push_back(item);
        partial_at.push_back(-1);
        continue;
      }
      // Few rows, so that these are all queries of the sequence.
      const int64_t first = key_begin / kPartKeys;
      item.parts = ceil_div(key_end, kPartKeys) - first;
      cuts += item.parts - 1;
      for (item.part = 0; item.part < item.parts; ++item.part) {
        item.key_begin = std::max(key_begin, (first + item.part) * kPartKeys);
        item.key_end = std::min(key_end, (first + item.part + 1) * kPartKeys);
        plan.items.push_back(item);
        partial_at.push_back(partial_floats);
      }
      partial_floats += Partials::size(item.parts * query_len * call.heads(), call.value_dim);
    }
  }
  plan.partials.reset(new float[size_t(partial_floats)]);
  for (size_t i = 0; i < plan.items.size(); ++i) {
    if (partial_at[i] >= 0) plan.items[i].partial = plan.partials.get() + partial_at[i];
  }
  // Where there are too few pieces, each takes some of the heads. No result depends on it.
  const int64_t wanted = threads > 1 ? kPiecesPerThread * threads : 1;
  const int64_t head_cuts = cuts == 0 ? 1 : std::min(call.kv_heads, ceil_div(wanted, cuts));
  plan.most_heads = std::min(kMostHeads, ceil_div(call.kv_heads, head_cuts));
  std::vector<Item> by_heads;
  size_t merge = 0;
  for (const Item& item : plan.items) {
    if (item.part == 0) merge = plan.merges.size();
    // Many rows share a read of their keys' head already, and need room for their state.
    const bool is_wide = (item.query_end - item.query_begin) * call.group > kRowsToSplit;
    const int64_t step = is_wide ? 1 : plan.most_heads;
    for (int64_t head = 0; head < call.kv_heads; head += step) {
      Item some = item;
      some.head_begin = head;
      some.head_end = std::min(head + step, call.kv_heads);
      some.merge = int64_t(merge) + head / step;
      by_heads.push_back(some);
      if (item.parts > 1 && item.part == 0) plan.merges.push_back(some);
    }
  }
  plan.items = std::move(by_heads);
  plan.parts_left.reset(new std::atomic<int64_t>[plan.merges.size()]);
  for (size_t i = 0; i < plan.merges.size(); ++i) plan.parts_left[i] = plan.merges[i].parts;
  const auto work = [](const Item& item) {
    return (item.key_end - item.key_begin) * (item.query_end - item.query_begin) *
           (item.head_end - item.head_begin);
  };
  std::stable_sort(plan.items.begin(), plan.items.end(), [&](const Item& a, const Item& b) {
    return work(a) > work(b);
  });
  return plan;
}

}  // namespace paged
