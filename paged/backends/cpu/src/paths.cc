#include "paths.h"

#include <cstddef>

#ifdef PAGED_HAS_avx2
#include <cpuid.h>
#endif

namespace paged {

// The build defines PAGED_HAS_... for each one that it compiles.
#ifdef PAGED_HAS_avx512_bf16
extern const Kernels kernels_avx512_bf16;
#endif
#ifdef PAGED_HAS_avx512
extern const Kernels kernels_avx512;
#endif
#ifdef PAGED_HAS_avx2
extern const Kernels kernels_avx2;
#endif
#ifdef PAGED_HAS_baseline
extern const Kernels kernels_baseline;
#endif
extern const Kernels kernels_scalar;

#ifdef PAGED_HAS_avx2
// Clang 14's __builtin_cpu_supports does not know it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

std::vector<const Kernels*> usable_paths() {
  std::vector<const Kernels*> usable;
#if defined(PAGED_HAS_avx512) || defined(PAGED_HAS_avx512_bf16)
  // These also ask the operating system whether it keeps the registers.
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
#ifdef PAGED_HAS_avx512_bf16
  if (has_avx512 && __builtin_cpu_supports("avx512bf16")) usable.push_back(&kernels_avx512_bf16);
#endif
#ifdef PAGED_HAS_avx512
  if (has_avx512) usable.push_back(&kernels_avx512);
#endif
#ifdef PAGED_HAS_avx2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
    usable.push_back(&kernels_avx2);
  }
#endif
#ifdef PAGED_HAS_baseline
  usable.push_back(&kernels_baseline);
#endif
  usable.push_back(&kernels_scalar);
  return usable;
}

const Kernels* find_path(int64_t path) {
  static const std::vector<const Kernels*> usable = usable_paths();
  return path < 0 || path >= int64_t(usable.size()) ? nullptr : usable[size_t(path)];
}

}  // namespace paged

// Names of the usable paths, for a caller without C++: null past the last.
extern "C" __attribute__((visibility("default"))) const char* paged_cpu_path(int64_t path) {
  const paged::Kernels* kernels = paged::find_path(path);
  return kernels == nullptr ? nullptr : kernels->path;
}

// Which sources this was compiled from.
extern "C" __attribute__((visibility("default"))) const char* paged_cpu_digest() {
  return PAGED_DIGEST;
}
