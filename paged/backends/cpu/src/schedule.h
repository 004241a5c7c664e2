// How the work of a call is cut.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "call.h"

namespace paged {

struct Schedule {
  std::vector<Item> items;   // the longest first
  std::vector<Item> merges;  // of sequences in several parts, one for each piece of heads
  std::unique_ptr<std::atomic<int64_t>[]> parts_left;  // for each merge
  std::unique_ptr<float[]> partials;                   // not cleared
  int64_t most_queries = 0;
  int64_t most_heads = 0;
};

// Cuts a step into pieces for `threads` threads.
Schedule schedule(const Attend& call, int64_t seqs, int64_t threads);

}  // namespace paged
