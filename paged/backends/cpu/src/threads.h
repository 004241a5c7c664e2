// Pieces of work over the threads that XLA has.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace paged {

// How long a caller looks whether the others are done before it sleeps. They are in their last pieces
// then, which take some 100 us in a decode. To be put to sleep and woken takes some 40 us more in a
// virtual machine, where a layer of a decode takes 2 ms.
constexpr std::chrono::microseconds kPatience{100};

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Runs run(piece) for pieces 0 .. count - 1, each once, on the caller and on up to threads - 1
// others; returns when all are done. `schedule_task` gives a task to the pool.
//
// The caller takes pieces itself until none is left, so that it never waits for a task that the pool
// has not begun: that could be for ever, where all threads of the pool are callers. A task that
// begins late finds nothing to do.
template <typename ScheduleTask, typename Run>
void for_each_piece(
    int64_t count, int64_t threads, const ScheduleTask& schedule_task, const Run& run) {
  struct Shared {
    std::atomic<int64_t> next{0};
    int64_t count;
    const Run* run;  // used only while pieces are left, hence while the caller waits
    std::atomic<int64_t> done{0};
    std::mutex mutex;
    std::condition_variable all_done;

    void work() {
      int64_t mine = 0;
      for (int64_t piece = next++; piece < count; piece = next++, ++mine) (*run)(piece);
      if (mine == 0 || (done += mine) != count) return;
      // Who is about to wait holds this until it does, so that the notification is not lost.
      { const std::lock_guard<std::mutex> lock(mutex); }
      all_done.notify_all();
    }
  };
  if (count <= 0) return;
  auto shared = std::make_shared<Shared>();
  shared->count = count;
  shared->run = &run;
  const int64_t helpers = (threads < count ? threads : count) - 1;
  for (int64_t i = 0; i < helpers; ++i) schedule_task([shared] { shared->work(); });
  shared->work();
  const auto patience = std::chrono::steady_clock::now() + kPatience;
  while (shared->done != count && std::chrono::steady_clock::now() < patience) relax();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->all_done.wait(lock, [&] { return shared->done == count; });
}

}  // namespace paged
