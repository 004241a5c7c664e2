// What a call is once its arguments have been checked: addresses and sizes, no library of arrays.
#pragma once

#include <cstdint>

namespace paged {

// Types of queries and of stored numbers; the first three can be both.
enum class Type : int { kFloat32, kFloat16, kBFloat16, kFloat8E4M3, kFloat8E5M2, kInt8 };

// Where an entry lies: the sum of its indices times these, in elements. See
// `paged.layouts.strides`. 64 bits: offsets pass 2^31.
struct Strides {
  int64_t block, slot, head, dim, to_value;
};

struct Write {
  const void* key;    // [tokens, heads, dim]
  const void* value;  // likewise; null for a latent cache
  Type type;          // of key and value
  void* cache;
  Type cache_type;
  Strides strides;
  const int32_t* slots;  // [tokens], each -1 or a slot of the cache
  int64_t heads, dim, block_size;
  const float* k_scale;  // null: 1
  const float* v_scale;
  int64_t k_scale_step, v_scale_step;  // 1 for a scale per head, 0 for one for all
};

struct Attend {
  const void* query;  // [tokens, heads, dim]
  Type query_type;
  const void* cache;
  Type cache_type;
  Strides strides;
  const int32_t* table;  // [seqs, width]
  int64_t table_width;
  const int32_t* seq_lens;
  const int32_t* starts;  // query_start_loc
  int64_t kv_heads, group, dim, value_dim, block_size;
  const float* k_scale;
  const float* v_scale;
  int64_t k_scale_step, v_scale_step;
  const float* sinks;  // [heads] or null
  float scale;
  float soft_cap;  // 0: none
  int64_t window;  // 0: none
  void* out;       // [tokens, heads, value_dim], of the query's type
  float* lse;      // [tokens, heads]

  int64_t heads() const { return kv_heads * group; }
};

// One piece of work: some queries of one sequence, the KV heads [head_begin, head_end), and the keys
// at positions [key_begin, key_end). Positions before the window of the first query are not in it.
struct Item {
  int64_t seq;
  int64_t query_begin, query_end;  // among the sequence's queries
  int64_t head_begin, head_end;
  int64_t key_begin, key_end;
  int64_t part;   // which of the sequence's parts of keys this is
  int64_t parts;  // 1: the result is final
  // Where there are several parts:
  float* partial;  // of this sequence, see `Partials`
  int64_t merge;   // which of the call's merges puts them together

  int64_t heads() const { return head_end - head_begin; }
};

// The states of a sequence's parts: weighted values, the largest logit, and the sum of weights, each
// for [part, query, head].
struct Partials {
  float* out;
  float* peak;
  float* total;

  Partials(float* at, int64_t rows_of_all_parts, int64_t value_dim)
      : out(at),
        peak(at + rows_of_all_parts * value_dim),
        total(at + rows_of_all_parts * (value_dim + 1)) {}

  static int64_t size(int64_t rows_of_all_parts, int64_t value_dim) {
    return rows_of_all_parts * (value_dim + 2);
  }
};

// The kernels compiled for one kind of processor.
struct Kernels {
  const char* path;
  // Bytes of scratch that `attend` needs for any item of a call, aligned to 64.
  int64_t (*scratch_bytes)(const Attend& call, int64_t most_queries, int64_t most_heads);
  // `next`, if any, is what this thread is likely to be given next.
  void (*attend)(const Attend& call, const Item& item, const Item* next, char* scratch);
  // Puts the parts of a sequence together, for some of its heads.
  void (*merge)(const Attend& call, const Item& item);
  void (*write)(const Write& call, int64_t token_begin, int64_t token_end);
};

}  // namespace paged
