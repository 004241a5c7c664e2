// Memory that is wanted soon, fetched in the order in which it lies there.
#pragma once

#include <cstdint>

#include "call.h"
#include "lanes.h"

namespace paged {
namespace {

constexpr int64_t kLine = 64;  // bytes

// What lies without a gap.
struct Run {
  const char *begin, *end;
};

// Runs that are fetched line by line while something else is computed. After the last one stands a
// run that is never finished, from the start of the cache on; so there is always a next line, which a
// product of padded keys may ask for.
//
// They are fetched evenly over the work that is done meanwhile: a core drops what it is asked for
// faster than memory can follow, and memory waits for one that asks for nothing.
struct Ahead {
  const Run* run;
  const char* at;
  // In parts of a line: what is fetched for each unit of work, and what is still to be for work done.
  static constexpr uint64_t kParts = 1 << 20;
  uint64_t rate, owed = 0;

  // Parts of lines for some work, which is counted in products of two numbers.
  PAGED_INLINE uint64_t beside(int64_t work) const { return uint64_t(work) * rate; }

  PAGED_INLINE void fetch(uint64_t parts) {
    owed += parts;
    if (owed < kParts) return;
    const char* from = at;
    const char* end = run->end;
    for (; owed >= kParts; owed -= kParts) {
      __builtin_prefetch(from, 0, 3);
      from += kLine;
      if (__builtin_expect(from >= end, 0)) {
        ++run;
        from = run->begin;
        end = run->end;
      }
    }
    at = from;
  }
};

// Rows that are wanted next, into the first level of cache: those of a tile at one head. What `Ahead`
// fetched has been moved to the second level by then, for a tile with all of its heads is larger
// than the first.
struct Next {
  const char* base = nullptr;
  const int64_t* offsets = nullptr;
  int64_t count = 0, itemsize = 0, bytes = 0;

  PAGED_INLINE void fetch(int64_t row) const {
    if (row >= count) return;
    const char* at = base + offsets[row] * itemsize;
    for (int64_t byte = 0; byte < bytes; byte += kLine) __builtin_prefetch(at + byte, 0, 3);
  }
};

// What is fetched beside a product.
struct Fetch {
  Next next;
  Ahead* ahead = nullptr;

  PAGED_INLINE uint64_t beside(int64_t work) const {
    return ahead == nullptr ? 0 : ahead->beside(work);
  }

  // With each key or value, `parts` being those beside the work on it.
  PAGED_INLINE void row(int64_t row, uint64_t parts) const {
    next.fetch(row);
    if (parts > 0) ahead->fetch(parts);
  }

  // For all of a product but its first rows and columns.
  PAGED_INLINE Fetch again() const { return {Next{}, ahead}; }
};

// The runs of keys and values.
//
// A tile is used head by head, and in most layouts a head's rows lie far apart: read that way, one
// core of an EPYC Zen 5 had 13 GB/s in float32 and 23 in bfloat16, with or without fetching ahead;
// fetched in the order of addresses 29 and 35, where a plain sum has 40 (128-wide heads, 8 of them,
// blocks of 16, 2026-11-30).
class Runs {
 public:
  // How many there can be in a tile, with the last one.
  static int64_t most(int64_t keys, int64_t heads) { return 2 * keys * heads + 1; }

  Runs(const Attend& call, int64_t itemsize, Run* runs)
      : call_(call), itemsize_(itemsize), kinds_(call.strides.to_value == 0 ? 1 : 2), runs_(runs) {
    const Strides& strides = call.strides;
    axes_[0] = {strides.slot, kSlots};
    axes_[1] = {strides.head, kHeads};
    axes_[2] = {strides.to_value, kinds_};
    // The innermost axis first.
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2 - i; ++j) {
        if (axes_[j].stride > axes_[j + 1].stride) {
          const Axis swapped = axes_[j];
          axes_[j] = axes_[j + 1];
          axes_[j + 1] = swapped;
        }
      }
    }
  }

  // Those of an item's next keys, `most` of them at most, over so much work. What was given before is
  // no longer valid.
  Ahead of(const Item& item, int64_t key, int64_t most, int64_t work) {
    // None where entries of a row do not lie side by side.
    if (call_.strides.dim != 1) return none();
    Run* last = runs_;
    const int64_t end = item.key_end - key < most ? item.key_end : key + most;
    while (key < end) {
      const int64_t slot = key % call_.block_size, room = call_.block_size - slot;
      const int64_t slots = end - key < room ? end - key : room;
      last = take_block(item, key / call_.block_size, slot, slots, last);
      key += slots;
    }
    return up_to(last, work);
  }

  Ahead none() { return up_to(runs_, 1); }

 private:
  // Sizes that depend on the block, and on the item.
  static constexpr int64_t kSlots = -1, kHeads = -2;
  struct Axis {
    int64_t stride, size;
  };

  Ahead up_to(Run* last, int64_t work) {
    last->begin = static_cast<const char*>(call_.cache);
    last->end = reinterpret_cast<const char*>(~uintptr_t{0});
    int64_t lines = 0;
    for (const Run* run = runs_; run != last; ++run) {
      lines += (run->end - run->begin + kLine - 1) / kLine;
    }
    return {runs_, runs_->begin, uint64_t(lines) * Ahead::kParts / uint64_t(work)};
  }

  Run* take_block(const Item& item, int64_t column, int64_t slot, int64_t slots, Run* last) {
    const int64_t block = call_.table[item.seq * call_.table_width + column];
    const int64_t begin = block * call_.strides.block + slot * call_.strides.slot +
                          item.head_begin * call_.strides.head;
    // Axes without a gap between their entries are merged; over the others it counts.
    int64_t elements = call_.dim, count = 1, sizes[3];
    int merged = 0;
    for (int i = 0; i < 3; ++i) {
      const int64_t size = axes_[i].size;
      sizes[i] = size == kSlots ? slots : size == kHeads ? item.heads() : size;
      if (merged == i && (axes_[i].stride == elements || sizes[i] == 1)) {
        elements *= sizes[i];
        ++merged;
      } else {
        count *= sizes[i];
      }
    }
    for (int64_t run = 0; run < count; ++run, ++last) {
      int64_t left = run, offset = begin;
      for (int i = merged; i < 3; ++i) {
        offset += left % sizes[i] * axes_[i].stride;
        left /= sizes[i];
      }
      last->begin = static_cast<const char*>(call_.cache) + offset * itemsize_;
      last->end = last->begin + elements * itemsize_;
    }
    return last;
  }

  const Attend& call_;
  int64_t itemsize_, kinds_;
  Axis axes_[3];
  Run* runs_;
};

}  // namespace
}  // namespace paged
