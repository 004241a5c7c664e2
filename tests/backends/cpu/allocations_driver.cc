// Memory that a step takes while it checks its values: none, however many blocks and tokens it has.

#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "step.h"

namespace {
int64_t allocations = 0;
}

void* operator new(std::size_t size) {
  ++allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

constexpr int64_t kBlock = 16;

int64_t checking(int32_t blocks) {
  const std::vector<int32_t> table(size_t(blocks), blocks - 1), starts = {0, 1};
  const std::vector<int32_t> lens = {int32_t(blocks * kBlock)};
  paged::Attend call{};
  call.table = table.data();
  call.table_width = blocks;
  call.starts = starts.data();
  call.seq_lens = lens.data();
  call.block_size = kBlock;
  const int64_t before = allocations;
  paged::check_attend(call, 1, 1, blocks);
  return allocations - before;
}

int64_t writing(int32_t tokens) {
  const std::vector<int32_t> slots(size_t(tokens), 3);
  paged::Write call{};
  call.slots = slots.data();
  call.block_size = kBlock;
  paged::Kernels nothing{};
  nothing.write = [](const paged::Write&, int64_t, int64_t) {};
  const int64_t before = allocations;
  paged::write_step(call, tokens, 1, nothing, 1, [](auto) {});
  return allocations - before;
}

}  // namespace

int main() {
  std::printf("%ld %ld", long(checking(5000)), long(writing(5000) - writing(1)));
}
