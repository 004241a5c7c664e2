// One item of attention: tiles of keys go by, and each KV head's queries meet them together.
#pragma once

#include <type_traits>

#include "finish.h"
#include "rows.h"

namespace paged {
namespace {

// Keys of a tile: as many as fit 8 KiB, so that those of a head, its values, the next head's keys and
// the logits stay in a first-level cache of 32 KiB or more, in which rows that lie a power of two
// apart share few sets. It follows from the cache and the sequence's own rows, never from the batch: a
// result depends on it, in its last bits.
constexpr int64_t kTileBytes = 8 << 10;
constexpr int64_t kMostTile = 64, kLeastTile = 16;
static_assert(kMostTile % kBlockColumns == 0 && kLeastTile % kLanes == 0);

// From this many rows on, keys are packed as columns: the packing is then paid for by the sums over
// lanes that `dots` needs.
constexpr int64_t kRowsToPack = 24;
// From this many rows on a tile is converted once; fewer read the cache itself.
constexpr int64_t kRowsToConvert = 9;

// What a weight takes, about, in products.
constexpr int64_t kWeightWork = 40;

PAGED_INLINE int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

// What an item works in.
struct Scratch {
  int64_t* offsets;
  Run* runs;
  float *queries, *out, *peak, *total;             // [heads, rows, ..]
  uint16_t* narrow_queries;                        // likewise, in bfloat16
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
    offsets = reinterpret_cast<int64_t*>(take(kMostTile, 8));
    runs = reinterpret_cast<Run*>(take(Runs::most(kMostTile, heads), sizeof(Run)));
    queries = floats(heads * rows * dim);
    narrow_queries = reinterpret_cast<uint16_t*>(take(heads * rows * dim, 2));
    out = floats(heads * rows * value_dim);
    peak = floats(heads * rows);
    total = floats(heads * rows);
    logits = floats(rows * kMostTile);
    kept = floats(rows);
    keys = floats(kMostTile * dim);
    values = floats(kMostTile * value_dim);
    panels = floats(kMostTile * dim);
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
  bool is_narrow;  // whether queries are multiplied in bfloat16

  Worker(const Attend& call, const Item& item, char* base)
      : call(call),
        item(item),
        scratch(
            call, (item.query_end - item.query_begin) * call.group,
            item.heads(), base),
        rows((item.query_end - item.query_begin) * call.group),
        dim(padded(call.dim)),
        value_dim(padded(call.value_dim)),
        is_latent(call.strides.to_value == 0) {
    const int64_t query_len = call.starts[item.seq + 1] - call.starts[item.seq];
    // Such products are exact, and so are those of numbers converted to float32 before. But the scale
    // comes after the sum here, and before it elsewhere. A scale far from 1 may bring back into
    // float32's range what would leave it before the scale: there queries are scaled first.
    is_narrow = call.scale >= 0x1p-20f && call.scale <= 0x1p20f && kMultipliesBFloat16 &&
                std::is_same_v<T, BFloat16> &&
                call.query_type == Type::kBFloat16 && call.dim % (2 * kLanes) == 0 &&
                call.strides.dim == 1 && rows < kRowsToPack;
    first_position = call.seq_lens[item.seq] - query_len + item.query_begin;
  }

  int64_t token(int64_t query) const { return call.starts[item.seq] + item.query_begin + query; }

  void run(const Item* next) {
    const int64_t heads = item.heads();
    for (int64_t h = 0; h < heads; ++h) take_queries(h);
    std::memset(scratch.out, 0, size_t(heads * rows * value_dim) * 4);
    for (int64_t r = 0; r < heads * rows; ++r) {
      scratch.peak[r] = kNone;
      scratch.total[r] = 0.0f;
    }
    tiles(next);
    for (int64_t h = 0; h < heads; ++h) give_results(h);
  }

  // Queries in float32 times every factor of the logits, rows by query, then head of the group; or as
  // they are where they are multiplied in bfloat16, of which no cache has a scale of its own.
  void take_queries(int64_t h) {
    const int64_t head = item.head_begin + h;
    const float k_scale = call.k_scale == nullptr ? 1.0f : call.k_scale[head * call.k_scale_step];
    with_compute_type(call.query_type, [&](auto type) {
      using Q = decltype(type);
      const auto* query = static_cast<const typename Q::Stored*>(call.query);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = token(r / call.group) * call.heads() + head * call.group + r % call.group;
        if (is_narrow) {
          std::memcpy(
              scratch.narrow_queries + (h * rows + r) * dim, query + row * call.dim,
              size_t(call.dim) * 2);
          continue;
        }
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

  void tiles(const Item* next) {
    const int64_t row_bytes = call.dim * int64_t(sizeof(Stored));
    int64_t tile = kMostTile;
    // Latents have one head, whose state would be moved in and out for each small tile.
    const bool is_small = rows < kRowsToPack && !is_latent;
    while (is_small && tile > kLeastTile && tile * row_bytes > kTileBytes) tile /= 2;
    Runs runs(call, sizeof(Stored), scratch.runs);
    // There is room for as many heads as this item has.
    if (next != nullptr && next->heads() > item.heads()) next = nullptr;
    for (int64_t begin = item.key_begin; begin < item.key_end; begin += tile) {
      const int64_t left = item.key_end - begin, count = left < tile ? left : tile;
      find_keys(call, item.seq, begin, count, scratch.offsets);
      const int64_t work =
          item.heads() * rows * count * (call.dim + kSumWork + kWeightWork + call.value_dim);
      // Few rows wait for memory, many do not.
      Ahead ahead = rows >= kRowsToPack ? runs.none()
                    : left > count      ? runs.of(item, begin + count, tile, work)
                    : next != nullptr   ? runs.of(*next, next->key_begin, tile, work)
                                        : runs.none();
      for (int64_t head = item.head_begin; head < item.head_end; ++head) {
        const auto* keys = static_cast<const Stored*>(call.cache) + head * call.strides.head;
        one_tile(keys, head - item.head_begin, begin, count, head + 1 < item.head_end, ahead);
      }
    }
  }

  void one_tile(
      const Stored* keys, int64_t h, int64_t begin, int64_t count, bool has_next, Ahead& ahead) {
    const float* queries = scratch.queries + h * rows * dim;
    const ScatteredRows<T> stored_keys{keys, scratch.offsets};
    const ScatteredRows<T> stored_values{keys + call.strides.to_value, scratch.offsets};
    // This head's values while its keys are used, the next head's keys while its values are.
    const bool is_read = rows < kRowsToPack && call.strides.dim == 1;
    const int64_t size = sizeof(Stored);
    Fetch with_keys, with_values;
    if (is_read) {
      const auto* values = reinterpret_cast<const char*>(keys + call.strides.to_value);
      const auto* next_keys = reinterpret_cast<const char*>(keys + call.strides.head);
      with_keys = {
          {values, scratch.offsets, is_latent ? 0 : count, size, call.value_dim * size}, &ahead};
      with_values = {
          {next_keys, scratch.offsets, has_next ? count : 0, size, call.dim * size}, &ahead};
    }
    const auto use_values = [&](const auto& value_rows) {
      weigh(h, begin, count, ahead);
      multiply(
          scratch.logits, kMostTile, rows, value_rows, call.value_dim, count, scratch.kept,
          scratch.out + h * rows * value_dim, value_dim, with_values);
    };
    const auto with_rows = [&](const auto& key_rows, const auto& value_rows) {
      if constexpr (kMultipliesBFloat16 && std::is_same_v<T, BFloat16>) {
        if (is_narrow) {
          dots(
              scratch.narrow_queries + h * rows * dim, dim, rows, stored_keys, count, call.dim,
              scratch.logits, kMostTile, with_keys);
          return use_values(value_rows);
        }
      }
      using Read = typename std::decay_t<decltype(key_rows)>::Type;
      if (std::is_same_v<Read, Float32> && rows >= kRowsToPack) {
        pack_columns(key_rows, count, call.dim, scratch.panels);
        packed_logits(
            queries, dim, rows, scratch.panels, count, call.dim, scratch.logits, kMostTile);
      } else {
        dots(
            queries, dim, rows, key_rows, count, call.dim, scratch.logits, kMostTile, with_keys);
      }
      use_values(value_rows);
    };
    const bool is_plain = call.strides.dim == 1;
    if (is_plain && (rows < kRowsToConvert || is_narrow)) return with_rows(stored_keys, stored_values);
    if constexpr (std::is_same_v<T, Float32>) {
      if (is_plain) return with_rows(stored_keys, stored_values);
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
  void weigh(int64_t h, int64_t begin, int64_t count, Ahead& ahead) {
    for (int64_t r = 0; r < rows; ++r) {
      ahead.fetch(ahead.beside(count * kWeightWork));
      const int64_t position = first_position + r / call.group;
      const int64_t last = position + 1 - begin;
      const int64_t first = call.window == 0 ? 0 : position + 1 - call.window - begin;
      scratch.kept[r] = weigh_row(
          scratch.logits + r * kMostTile, count, first < 0 ? 0 : first, last < count ? last : count,
          is_narrow ? call.scale : 1.0f, call.soft_cap, scratch.peak + h * rows + r, scratch.total + h * rows + r);
    }
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
