// Which of the compiled kernels this machine can run.
#pragma once

#include <vector>

#include "call.h"

namespace paged {

// The kernels that this machine runs, the fastest first.
std::vector<const Kernels*> usable_paths();

// Path number `path` of `usable_paths`; null where there is none.
const Kernels* find_path(int64_t path);

}  // namespace paged
