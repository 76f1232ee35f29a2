// The table of operations on an NVIDIA GPU. Functions take device addresses, launch on the stream
// of their Execution and return; its share is all of the work. Results are there for what follows
// in the stream.
#pragma once

#include <span>

#include "kernels/inference.h"

namespace invar::cuda {

// The kernels of an order, with the schedules below chosen by shape.
Kernels kernels(Order order);

// Ways to compute the same bits: which threads compute what, in which pieces. All choices of tile,
// split and stages are entries of these tables.
struct ProductSchedule {
  static constexpr int64_t kAnyRows = int64_t{1} << 62;
  // Chosen for up to so many rows of a plain product in one run, a gated product, a product in
  // several runs.
  struct Rows {
    int64_t plain, gated, runs;
  };

  const char* name;
  // Whether it can compute a product of this inner size in so many runs.
  bool (*can)(int64_t k, int runs);
  Operation<MatmulParams> matmul;
  Operation<GatedMatmulParams> gated_matmul;
  Rows max_rows;  // the first entry that fits is taken
};
std::span<const ProductSchedule> product_schedules(Order order);

struct AttentionSchedule {
  const char* name;
  Operation<AttentionParams> attention;
  int64_t max_rows;
};
std::span<const AttentionSchedule> attention_schedules(Order order);

// Runs recorded steps of an H200's tensor cores on this GPU's. Throws Error, one sentence, when a
// bit differs: then the order hopper is not what this GPU computes.
void check_hopper_steps(Device& device);

// Reads memory of a GPU, for measuring how fast that goes; adds to *sum.
void read(const void* data, size_t bytes, uint64_t* sum, const Execution& on);

}  // namespace invar::cuda
