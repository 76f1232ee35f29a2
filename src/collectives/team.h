// Groups in host memory share this: work over an operand's elements by the threads of a rank, and
// the tree over operands.
#pragma once

#include <cstring>

#include "base/thread_pool.h"
#include "device/execution.h"

namespace invar::team {

inline constexpr int64_t kAlone = 8192;  // floats that one thread moves sooner than a team
// From so many floats on each rank adds its share of them and the others take it over, so that a
// float is added once; below, another meeting would cost more.
inline constexpr int64_t kTwoShots = 4096;

// work(run) for the runs of [all.begin, all.end) that the threads of this rank have.
template <typename Work>
void share_out(const Execution& on, Part::Run all, Work work) {
  const int64_t count = all.end - all.begin;
  if (!on.pool || count < kAlone) return work(all);
  on.pool->run([&](Part part) {
    const Part::Run run = part.of(count, 16);
    work(Part::Run{all.begin + run.begin, all.begin + run.end});
  });
}

// The part of `count` floats that a rank adds up.
inline Part::Run share_of(int rank, int size, int64_t count) {
  return Part{rank, size}.of(count, 16);
}

// Bytes from one place to another.
inline void copy(const Execution& on, void* to, const void* from, int64_t bytes) {
  constexpr int64_t kFloat = sizeof(float);
  if (bytes / kFloat < kAlone) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  share_out(on, {0, bytes / kFloat}, [&](Part::Run run) {
    const int64_t begin = run.begin * kFloat;
    const int64_t end = run.end == bytes / kFloat ? bytes : run.end * kFloat;
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

template <int N>
float tree(const float* const* operands, int64_t i) {
  if constexpr (N == 1)
    return operands[0][i];
  else
    return tree<N / 2>(operands, i) + tree<N / 2>(operands + N / 2, i);
}

// to[i] = tree over N operands, for i of [run.begin, run.end). An operand may be `to`.
template <int N>
void add(const float* const* operands, Part::Run run, float* to) {
#ifndef __clang__  // which does not know it
#pragma GCC ivdep
#endif
  for (int64_t i = run.begin; i < run.end; ++i) to[i] = tree<N>(operands, i);
}

using Add = void (*)(const float* const*, Part::Run, float*);
inline Add add_of(int size) {
  switch (size) {
    case 1:
      return add<1>;
    case 2:
      return add<2>;
    case 4:
      return add<4>;
    case 8:
      return add<8>;
    case 16:
      return add<16>;
    case 32:
      return add<32>;
    default:
      return add<64>;
  }
}

}  // namespace invar::team
