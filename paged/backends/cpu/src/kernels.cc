// Compiled once for each kind of processor: PAGED_PATH names it, PAGED_LANES is its vector's width.
//
// Nothing here is visible elsewhere but the table at the end: of a function that two objects share
// the linker keeps one, which may be the one with instructions that this machine lacks.

#include "attend.h"
#include "write.h"

namespace paged {
namespace {

int64_t scratch_bytes(const Attend& call, int64_t most_queries, int64_t most_heads) {
  return Scratch(call, most_queries * call.group, most_heads, nullptr).bytes;
}

void attend_item(const Attend& call, const Item& item, const Item* next, char* scratch) {
  with_type(call.cache_type, [&](auto type) {
    Worker<decltype(type)>(call, item, scratch).run(next);
  });
}

}  // namespace

#define PAGED_JOINED(a, b) a##b
#define PAGED_TABLE(path) PAGED_JOINED(kernels_, path)
#define PAGED_QUOTED(x) #x
#define PAGED_TEXT(x) PAGED_QUOTED(x)

extern const Kernels PAGED_TABLE(PAGED_PATH);
const Kernels PAGED_TABLE(PAGED_PATH) = {
    PAGED_TEXT(PAGED_PATH), scratch_bytes, attend_item, merge_parts, write_any};

}  // namespace paged
