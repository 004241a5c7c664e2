// Several callers give steps to one pool of threads, for ThreadSanitizer; their results must be those
// of one thread, to the bit.

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "paths.h"
#include "step.h"

namespace {

class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void schedule(std::function<void()> task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [this] { return is_over_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool is_over_ = false;
  std::vector<std::thread> threads_;
};

constexpr int64_t kHeads = 2, kGroup = 2, kDim = 8, kBlock = 4, kBlocks = 700, kSeqs = 4;

std::vector<float> run(Pool* pool, int threads) {
  const std::vector<int32_t> lens = {1200, 30, 40, 700}, starts = {0, 1, 2, 42, 45};
  const int64_t tokens = starts.back(), width = 300, block = 2 * kBlock * kHeads * kDim;
  std::vector<float> cache(size_t(kBlocks * block)), query(size_t(tokens * kHeads * kGroup * kDim));
  for (size_t i = 0; i < cache.size(); ++i) cache[i] = float(int(i * 7919 % 1001) - 500) / 500;
  for (size_t i = 0; i < query.size(); ++i) query[i] = float(int(i * 104729 % 997) - 498) / 498;
  std::vector<int32_t> table(size_t(kSeqs * width));
  for (size_t i = 0; i < table.size(); ++i) table[i] = int32_t(1 + i * 31 % (kBlocks - 1));
  std::vector<float> results(query.size() + size_t(tokens * kHeads * kGroup));

  paged::Attend call{};
  call.query = query.data();
  call.cache = cache.data();
  call.strides = {block, kHeads * kDim, kDim, 1, kBlock * kHeads * kDim};
  call.table = table.data();
  call.table_width = width;
  call.seq_lens = lens.data();
  call.starts = starts.data();
  call.kv_heads = kHeads;
  call.group = kGroup;
  call.dim = call.value_dim = kDim;
  call.block_size = kBlock;
  call.scale = 1.5f;
  call.out = results.data();
  call.lse = results.data() + query.size();

  const auto to_pool = [&](auto task) { pool->schedule(task); };
  paged::attend_step(call, kSeqs, tokens, kBlocks, *paged::find_path(0), threads, to_pool);
  return results;
}

}  // namespace

int main() {
  const std::vector<float> expected = run(nullptr, 1);
  bool is_same = true;
  Pool pool(3);
  std::vector<std::vector<float>> found(4);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> callers;
    for (std::vector<float>& results : found) {
      callers.emplace_back([&pool, &results] { results = run(&pool, 4); });
    }
    for (std::thread& caller : callers) caller.join();
    for (const std::vector<float>& results : found) {
      is_same &= std::memcmp(results.data(), expected.data(), expected.size() * 4) == 0;
    }
  }
  std::puts(is_same ? "same bits" : "different bits");
  return is_same ? 0 : 1;
}
