// One item of attention: tiles of keys go by, and each KV head's queries meet them together.
#pragma once

#include <type_traits>

#include "finish.h"
#include "rows.h"

namespace paged {
namespace {

// Keys of a tile. 64 rows of 128 numbers in bfloat16 are 16 KiB: a tile of keys, one of values and
// the logits stay in a first-level cache of 32 KiB or more. Rows of a latent are longer.
constexpr int64_t kTile = 64;
constexpr int64_t kLatentTile = 32;
static_assert(kTile % kBlockColumns == 0 && kLatentTile % kLanes == 0);

// From this many rows on, keys are packed as columns: the packing is then paid for by the sums over
// lanes that `dots` needs.
constexpr int64_t kRowsToPack = 24;
// Up to this many rows read the cache itself; more would convert each key again and again.
constexpr int64_t kRowsToConvert = 9;

PAGED_INLINE int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

// What an item works in.
struct Scratch {
  int64_t *offsets, *next_offsets;
  float *queries, *out, *peak, *total;             // [heads, rows, ..]
  float *logits, *kept, *keys, *values, *panels;   // of one head and tile

  int64_t bytes;

  Scratch(const Attend& call, int64_t rows, int64_t heads, char* base) {
    char* at = base;
    const auto take = [&at](int64_t count, int64_t size) {
      char* taken = at;
      at += (count * size + 63) / 64 * 64;
      return taken;
    };
    const auto floats = [&take](int64_t count) { return reinterpret_cast<float*>(take(count, 4)); };
    const int64_t dim = padded(call.dim), value_dim = padded(call.value_dim);
    offsets = reinterpret_cast<int64_t*>(take(kTile, 8));
    next_offsets = reinterpret_cast<int64_t*>(take(kTile, 8));
    queries = floats(heads * rows * dim);
    out = floats(heads * rows * value_dim);
    peak = floats(heads * rows);
    total = floats(heads * rows);
    logits = floats(rows * kTile);
    kept = floats(rows);
    keys = floats(kTile * dim);
    values = floats(kTile * value_dim);
    panels = floats(kTile * dim);
    bytes = at - base;
  }
};

// The arithmetic of an item over a cache of one type.
template <typename T>
struct Worker {
  using Stored = typename T::Stored;

  const Attend& call;
  const Item& item;
  Scratch scratch;
  int64_t rows, dim, value_dim;  // rows of a head: queries times group; widths with padding
  int64_t first_position;        // of the item's first query
  bool is_latent;

  Worker(const Attend& call, const Item& item, char* base)
      : call(call),
        item(item),
        scratch(
            call, (item.query_end - item.query_begin) * call.group,
            item.head_end - item.head_begin, base),
        rows((item.query_end - item.query_begin) * call.group),
        dim(padded(call.dim)),
        value_dim(padded(call.value_dim)),
        is_latent(call.strides.to_value == 0) {
    const int64_t query_len = call.starts[item.seq + 1] - call.starts[item.seq];
    first_position = call.seq_lens[item.seq] - query_len + item.query_begin;
  }

  int64_t token(int64_t query) const { return call.starts[item.seq] + item.query_begin + query; }

  void run() {
    const int64_t heads = item.head_end - item.head_begin;
    for (int64_t h = 0; h < heads; ++h) take_queries(h);
    std::memset(scratch.out, 0, size_t(heads * rows * value_dim) * 4);
    for (int64_t r = 0; r < heads * rows; ++r) {
      scratch.peak[r] = kNone;
      scratch.total[r] = 0.0f;
    }
    tiles();
    for (int64_t h = 0; h < heads; ++h) give_results(h);
  }

  // Queries in float32 times every factor of the logits, rows by query, then head of the group.
  void take_queries(int64_t h) {
    const int64_t head = item.head_begin + h;
    const float k_scale = call.k_scale == nullptr ? 1.0f : call.k_scale[head * call.k_scale_step];
    with_compute_type(call.query_type, [&](auto type) {
      using Q = decltype(type);
      const auto* query = static_cast<const typename Q::Stored*>(call.query);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = token(r / call.group) * call.heads() + head * call.group + r % call.group;
        float* at = scratch.queries + (h * rows + r) * dim;
        int64_t d = 0;
        for (; d + kLanes <= call.dim; d += kLanes) {
          store(at + d, Q::read(query + row * call.dim + d) * call.scale * k_scale);
        }
        for (; d < dim; ++d) {
          at[d] = d < call.dim ? decoded<Q>(query + row * call.dim + d) * call.scale * k_scale : 0.0f;
        }
      }
    });
  }

  void tiles() {
    const auto* cache = static_cast<const Stored*>(call.cache);
    const int64_t tile = is_latent && rows < kRowsToPack ? kLatentTile : kTile;
    const auto size = [&](int64_t begin) {
      const int64_t left = item.key_end - begin;
      return left < tile ? left : tile;
    };
    if (item.key_begin < item.key_end) {
      find_keys(call, item.seq, item.key_begin, size(item.key_begin), scratch.offsets);
    }
    for (int64_t begin = item.key_begin; begin < item.key_end; begin += tile) {
      const int64_t count = size(begin);
      const int64_t next = begin + tile < item.key_end ? size(begin + tile) : 0;
      if (next > 0) find_keys(call, item.seq, begin + tile, next, scratch.next_offsets);
      for (int64_t head = item.head_begin; head < item.head_end; ++head) {
        const bool is_last = head + 1 == item.head_end;
        const int64_t soon_head = is_last ? item.head_begin : head + 1;
        const Stored* soon = cache + soon_head * call.strides.head;
        const int64_t* offsets = is_last ? scratch.next_offsets : scratch.offsets;
        const int64_t soon_count = is_last ? next : count;
        const int64_t size = sizeof(Stored);
        const Soon keys{(const char*)soon, offsets, soon_count, size, call.dim * size};
        const Soon values{
            (const char*)(soon + call.strides.to_value), offsets, is_latent ? 0 : soon_count, size,
            call.value_dim * size};
        one_tile(cache + head * call.strides.head, head - item.head_begin, begin, count, keys, values);
      }
      int64_t* swapped = scratch.offsets;
      scratch.offsets = scratch.next_offsets;
      scratch.next_offsets = swapped;
    }
  }

  void one_tile(
      const Stored* keys, int64_t h, int64_t begin, int64_t count, const Soon& soon_keys,
      const Soon& soon_values) {
    const float* queries = scratch.queries + h * rows * dim;
    const ScatteredRows<T> stored_keys{keys, scratch.offsets};
    const ScatteredRows<T> stored_values{keys + call.strides.to_value, scratch.offsets};
    if (rows < kRowsToConvert && call.strides.dim == 1) {
      dots(
          queries, dim, rows, stored_keys, count, call.dim, scratch.logits, kTile, soon_keys);
      weigh(h, begin, count);
      add_values(h, stored_values, count, &soon_values);
      return;
    }
    const auto with_rows = [&](const auto& key_rows, const auto& value_rows) {
      if (rows < kRowsToPack) {
        dots(queries, dim, rows, key_rows, count, call.dim, scratch.logits, kTile, soon_keys);
      } else {
        pack_columns(key_rows, count, call.dim, scratch.panels);
        packed_logits(
            queries, dim, rows, scratch.panels, count, call.dim, scratch.logits, kTile);
      }
      weigh(h, begin, count);
      add_values(h, value_rows, count, &soon_values);
    };
    if constexpr (std::is_same_v<T, Float32>) {
      if (call.strides.dim == 1) return with_rows(stored_keys, stored_values);
    }
    const int64_t whole = (count + kLanes - 1) / kLanes * kLanes;
    convert_rows<T>(
        keys, scratch.offsets, whole, call.dim, call.strides.dim, scratch.keys, dim);
    const EvenRows key_rows{scratch.keys, dim};
    if (is_latent) return with_rows(key_rows, key_rows);
    convert_rows<T>(
        keys + call.strides.to_value, scratch.offsets, count, call.value_dim, call.strides.dim,
        scratch.values, value_dim);
    with_rows(key_rows, EvenRows{scratch.values, value_dim});
  }

  // Logits become weights.
  void weigh(int64_t h, int64_t begin, int64_t count) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t position = first_position + r / call.group;
      const int64_t last = position + 1 - begin;
      const int64_t first = call.window == 0 ? 0 : position + 1 - call.window - begin;
      scratch.kept[r] = weigh_row(
          scratch.logits + r * kTile, count, first < 0 ? 0 : first, last < count ? last : count,
          call.soft_cap, scratch.peak + h * rows + r, scratch.total + h * rows + r);
    }
  }

  template <typename Rows>
  void add_values(int64_t h, const Rows& values, int64_t count, const Soon* soon) {
    multiply(
        scratch.logits, kTile, rows, values, call.value_dim, count, scratch.kept,
        scratch.out + h * rows * value_dim, value_dim, soon);
  }

  void give_results(int64_t h) {
    const int64_t head = item.head_begin + h;
    const int64_t query_len = call.starts[item.seq + 1] - call.starts[item.seq];
    const Partials partials(
        item.partial, item.parts * query_len * call.heads(), call.value_dim);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = h * rows + r, query_head = head * call.group + r % call.group;
      const float* weighted = scratch.out + at * value_dim;
      if (item.parts == 1) {
        finish_row(
            call, token(r / call.group), query_head, weighted, scratch.peak[at], scratch.total[at]);
        continue;
      }
      const int64_t query = item.query_begin + r / call.group;
      const int64_t row = (item.part * query_len + query) * call.heads() + query_head;
      std::memcpy(
          partials.out + row * call.value_dim, weighted, size_t(call.value_dim) * sizeof(float));
      partials.peak[row] = scratch.peak[at];
      partials.total[row] = scratch.total[at];
    }
  }
};

}  // namespace
}  // namespace paged
