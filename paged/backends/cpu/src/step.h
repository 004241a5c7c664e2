// A step whose shapes and types were checked: its values are checked before a kernel sees an address,
// then it is cut into pieces, which threads run. Knows nothing of who calls.
#pragma once

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "schedule.h"
#include "threads.h"

namespace paged {

struct Refused {
  std::string why;
};

inline std::string text(int64_t number) { return std::to_string(number); }
inline std::string text(const char* words) { return words; }
inline std::string text(const std::string& words) { return words; }

template <typename... Pieces>
[[noreturn, gnu::cold, gnu::noinline]] void refuse(Pieces... why) {
  throw Refused{(text(why) + ...)};
}

// The message is put together only where it is needed: a step has thousands of blocks to check.
template <typename... Pieces>
inline void require(bool holds, Pieces... why) {
  if (__builtin_expect(!holds, 0)) refuse(why...);
}

// Memory of a thread that outlives a call: a new one would be mapped, page by page, each time.
inline char* scratch_of_this_thread(int64_t bytes) {
  struct Held {
    char* memory = nullptr;
    int64_t size = 0;
    ~Held() { std::free(memory); }
  };
  static thread_local Held held;
  if (held.size < bytes) {
    std::free(held.memory);
    held.memory = static_cast<char*>(std::aligned_alloc(64, size_t((bytes + 63) / 64 * 64)));
    held.size = held.memory == nullptr ? 0 : bytes;
    require(held.memory != nullptr, "memory: none left for ", bytes, " bytes of scratch");
  }
  return held.memory;
}

inline void check_attend(const Attend& call, int64_t seqs, int64_t tokens, int64_t num_blocks) {
  require(call.starts[0] == 0, "query_start_loc[0]: got ", call.starts[0], ", expected 0");
  for (int64_t seq = 0; seq < seqs; ++seq) {
    const int64_t start = call.starts[seq], end = call.starts[seq + 1];
    require(
        start <= end && end <= tokens, "query_start_loc[", seq + 1, "]: got ", end, ", expected ",
        start, " to ", tokens);
    if (start == end) continue;
    const int64_t seq_len = call.seq_lens[seq], query_len = end - start;
    const int64_t room = call.table_width * call.block_size;
    require(
        query_len <= seq_len && seq_len <= room, "seq_lens[", seq, "]: got ", seq_len,
        ", expected ", query_len, " (its query length) to ", room,
        " (what its table has room for in blocks of ", call.block_size, " slots)");
    const int64_t first = seq_len - query_len + 1 - call.window;
    const int64_t begin = call.window == 0 || first < 0 ? 0 : first / call.block_size;
    for (int64_t column = begin; column <= (seq_len - 1) / call.block_size; ++column) {
      const int64_t block = call.table[seq * call.table_width + column];
      require(
          block >= 0 && block < num_blocks, "block_table[", seq, ", ", column, "]: got block ",
          block, ", expected 0 <= block < ", num_blocks);
    }
  }
}

// Rows of padding belong to no sequence.
inline void clear_padding(const Attend& call, int64_t begin, int64_t tokens) {
  const size_t size = call.query_type == Type::kFloat32 ? 4 : 2;
  const int64_t row = call.heads() * call.value_dim;
  std::memset(
      static_cast<char*>(call.out) + size_t(begin * row) * size, 0,
      size_t((tokens - begin) * row) * size);
  for (int64_t i = begin * call.heads(); i < tokens * call.heads(); ++i) {
    call.lse[i] = -std::numeric_limits<float>::infinity();
  }
}

// Throws Refused, before memory is touched unless none is left for scratch. `to_pool` gives a task to
// other threads; with one thread it is given none.
template <typename ScheduleTask>
void attend_step(
    const Attend& call, int64_t seqs, int64_t tokens, int64_t num_blocks, const Kernels& kernels,
    int64_t threads, const ScheduleTask& to_pool) {
  check_attend(call, seqs, tokens, num_blocks);
  clear_padding(call, call.starts[seqs], tokens);
  Schedule plan = schedule(call, seqs, threads);
  const int64_t bytes = kernels.scratch_bytes(call, plan.most_queries, plan.most_heads);
  std::atomic<bool> has_memory{true};
  for_each_piece(int64_t(plan.items.size()), threads, to_pool, [&](int64_t piece) {
    // Where all of n threads are as fast, each is given every n-th piece.
    const size_t next = size_t(piece + threads);
    const Item* likely = next < plan.items.size() ? &plan.items[next] : nullptr;
    const Item& item = plan.items[size_t(piece)];
    try {
      kernels.attend(call, item, likely, scratch_of_this_thread(bytes));
    } catch (const Refused&) {
      has_memory = false;
    }
    // Whoever finishes the last part puts all together, in their order whatever this one's is.
    if (item.parts > 1 && --plan.parts_left[size_t(item.merge)] == 0) {
      kernels.merge(call, plan.merges[size_t(item.merge)]);
    }
  });
  require(has_memory, "memory: none left for ", bytes, " bytes of scratch a thread");
}

// Tokens of a piece of a write: small enough to share out a prefill, large enough for one decode.
constexpr int64_t kPieceTokens = 64;

// As `attend_step`.
template <typename ScheduleTask>
void write_step(
    const Write& call, int64_t tokens, int64_t num_blocks, const Kernels& kernels, int64_t threads,
    const ScheduleTask& to_pool) {
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t slot = call.slots[token];
    require(
        slot >= -1 && slot < num_blocks * call.block_size, "slot_mapping[", token, "]: got ", slot,
        ", expected -1 <= slot < ", num_blocks * call.block_size, " (", num_blocks,
        " blocks of ", call.block_size, " slots)");
  }
  const int64_t pieces = (tokens + kPieceTokens - 1) / kPieceTokens;
  for_each_piece(pieces, threads, to_pool, [&](int64_t piece) {
    const int64_t begin = piece * kPieceTokens;
    kernels.write(call, begin, begin + kPieceTokens < tokens ? begin + kPieceTokens : tokens);
  });
}

}  // namespace paged
