// The kernels as a process that answers requests on stdin, so that those of another processor run
// under an emulator, where there is no Python and no XLA: `driver PATH [flush]`.
//
// A request: its numbers (int64), then arrays, each as its bytes (int64) and those. An answer: why the
// values were refused, or nothing, then the results, as arrays too. See emulated.py.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "paths.h"
#include "step.h"

namespace {

using Array = std::vector<char>;

bool read(void* at, size_t bytes) { return std::fread(at, 1, bytes, stdin) == bytes; }

int64_t number() {
  int64_t found;
  if (!read(&found, sizeof found)) std::exit(2);
  return found;
}

Array array() {
  Array found(size_t(number()), 0);
  if (!read(found.data(), found.size())) std::exit(2);
  return found;
}

void answer(const void* at, size_t bytes) {
  const int64_t size = int64_t(bytes);
  std::fwrite(&size, 1, sizeof size, stdout);
  std::fwrite(at, 1, bytes, stdout);
}

template <typename T>
const T* entries(const Array& array) {
  return reinterpret_cast<const T*>(array.data());
}

const float* scales(const Array& array, int64_t* step) {
  *step = array.size() > sizeof(float) ? 1 : 0;
  return array.empty() ? nullptr : entries<float>(array);
}

paged::Strides strides() {
  const int64_t block = number(), slot = number(), head = number(), dim = number();
  return {block, slot, head, dim, number()};
}

const auto alone = [](auto) { std::exit(3); };

// Why the values were refused, if they were.
template <typename Run>
std::string refusal(const Run& run) {
  try {
    run();
  } catch (const paged::Refused& refused) {
    return refused.why;
  }
  return "";
}

void attend(const paged::Kernels& kernels) {
  paged::Attend call{};
  call.query_type = paged::Type(number());
  call.cache_type = paged::Type(number());
  call.strides = strides();
  const int64_t num_blocks = number(), tokens = number(), seqs = number();
  call.table_width = number();
  call.block_size = number();
  call.kv_heads = number();
  call.group = number();
  call.dim = number();
  call.value_dim = number();
  call.window = number();
  const Array query = array(), cache = array(), table = array(), seq_lens = array(),
              starts = array(), k_scale = array(), v_scale = array(), sinks = array(),
              factors = array();
  call.query = query.data();
  call.cache = cache.data();
  call.table = entries<int32_t>(table);
  call.seq_lens = entries<int32_t>(seq_lens);
  call.starts = entries<int32_t>(starts);
  call.k_scale = scales(k_scale, &call.k_scale_step);
  call.v_scale = scales(v_scale, &call.v_scale_step);
  call.sinks = sinks.empty() ? nullptr : entries<float>(sinks);
  call.scale = entries<float>(factors)[0];
  call.soft_cap = entries<float>(factors)[1];
  const size_t rows = size_t(tokens * call.heads());
  // Full of ones, as bits: what nobody writes is NaN.
  Array out(rows * size_t(call.value_dim) * (call.query_type == paged::Type::kFloat32 ? 4 : 2), -1);
  Array lse(rows * sizeof(float), -1);
  call.out = out.data();
  call.lse = reinterpret_cast<float*>(lse.data());
  const std::string why = refusal(
      [&] { paged::attend_step(call, seqs, tokens, num_blocks, kernels, 1, alone); });
  answer(why.data(), why.size());
  answer(out.data(), out.size());
  answer(lse.data(), lse.size());
}

void write(const paged::Kernels& kernels) {
  paged::Write call{};
  call.type = paged::Type(number());
  call.cache_type = paged::Type(number());
  call.strides = strides();
  const int64_t num_blocks = number(), tokens = number();
  call.block_size = number();
  call.heads = number();
  call.dim = number();
  const Array key = array(), value = array(), slots = array(), k_scale = array(), v_scale = array();
  Array cache = array();
  call.key = key.data();
  call.value = value.empty() ? nullptr : value.data();
  call.slots = entries<int32_t>(slots);
  call.k_scale = scales(k_scale, &call.k_scale_step);
  call.v_scale = scales(v_scale, &call.v_scale_step);
  call.cache = cache.data();
  const std::string why =
      refusal([&] { paged::write_step(call, tokens, num_blocks, kernels, 1, alone); });
  answer(why.data(), why.size());
  answer(cache.data(), cache.size());
}

// XLA's threads take numbers below the smallest normal one for 0, in arguments and results.
void flush_small_numbers() {
#if defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  __asm__ volatile("msr fpcr, %0" : : "r"(control | (uint64_t{1} << 24)));
#elif defined(__SSE2__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

}  // namespace

int main(int count, char** arguments) {
  const paged::Kernels* kernels = nullptr;
  for (const paged::Kernels* usable : paged::usable_paths()) {
    if (count > 1 && std::strcmp(usable->path, arguments[1]) == 0) kernels = usable;
  }
  if (kernels == nullptr) return 4;
  if (count > 2 && std::strcmp(arguments[2], "flush") == 0) flush_small_numbers();
  int64_t what;
  while (read(&what, sizeof what)) {
    what == 0 ? write(*kernels) : attend(*kernels);
    std::fflush(stdout);
  }
  return 0;
}
