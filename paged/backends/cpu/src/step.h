// One call of attention from its schedule to its results, on whatever gives threads.
#pragma once

#include <atomic>
#include <cstdlib>

#include "schedule.h"
#include "threads.h"

namespace paged {

// Memory of a thread that outlives a call: a new one would be mapped, page by page, each time. Null
// where there is none left.
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
  }
  return held.memory;
}

// Attends all sequences of a call whose values have been checked.
//
// Returns: the bytes of scratch for which a thread found no memory, and then there are no results; 0
// where all went well.
template <typename ScheduleTask>
int64_t attend_all(
    const Attend& call, int64_t seqs, const Kernels& kernels, int64_t threads,
    const ScheduleTask& schedule_task) {
  const Schedule plan = schedule(call, seqs, threads);
  const int64_t bytes = kernels.scratch_bytes(call, plan.most_queries, plan.most_heads);
  std::atomic<bool> has_memory{true};
  for_each_piece(int64_t(plan.items.size()), threads, schedule_task, [&](int64_t piece) {
    // Where all threads are as fast, each is given every so many-th piece.
    const size_t next = size_t(piece + threads);
    const Item* likely = next < plan.items.size() ? &plan.items[next] : nullptr;
    const Item& item = plan.items[size_t(piece)];
    char* scratch = scratch_of_this_thread(bytes);
    if (scratch == nullptr) {
      has_memory = false;
      return;
    }
    kernels.attend(call, item, likely, scratch);
    // Whoever finishes the last part puts all together, in their order whatever this one's is.
    if (item.parts > 1 && --plan.parts_left[size_t(item.merge)] == 0) {
      kernels.merge(call, plan.merges[size_t(item.merge)]);
    }
  });
  return has_memory ? 0 : bytes;
}

}  // namespace paged
