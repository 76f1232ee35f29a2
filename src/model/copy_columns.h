// Copies of the first columns of rows, by a whole team.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/thread_pool.h"
#include "device/execution.h"

namespace invar {

// Rows that lie so many elements apart.
template <typename T>
struct RowsOf {
  T* first;
  int64_t stride;
};

inline void copy_columns(const Execution& on, RowsOf<float> to, RowsOf<const float> from,
                         int64_t width, int64_t rows) {
  constexpr int64_t kAlone = 16384;  // floats that one thread copies sooner than a team
  const auto bytes = [](int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); };
  if (!on.pool || rows * width < kAlone)
    return on.stream->copy_rows(to.first, bytes(to.stride), from.first, bytes(from.stride),
                                bytes(width), static_cast<size_t>(rows));
  on.pool->run([&](Part part) {
    const auto [begin, end] = part.of(rows);
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(to.first + row * to.stride, from.first + row * from.stride, bytes(width));
  });
}

}  // namespace invar
