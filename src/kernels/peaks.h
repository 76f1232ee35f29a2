// The peaks of this machine's memory and arithmetic, measured: the limits that speeds are compared
// with. Best of several short runs, since a limit is what no run exceeds.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"

namespace invar {

// Bytes per second that the pool's threads read together. `memory` should be far larger than the
// caches and written before.
double measure_read_bandwidth(ThreadPool& pool, std::span<const std::byte> memory);
// The same over several arrays, one after the other.
double measure_read_bandwidth(ThreadPool& pool,
                              const std::vector<std::span<const std::byte>>& arrays);

// Floating-point operations per second of the products of an instruction set, operands in
// registers, all threads together: f32 fma for "avx2" and "avx512", TDPBF16PS for "amx".
// 0 for other sets. The machine must support the set.
double measure_product_peak(ThreadPool& pool, std::string_view instruction_set);

}  // namespace invar
