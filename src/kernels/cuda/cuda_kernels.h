// The table of operations on an NVIDIA GPU. Functions take device addresses, launch on the stream
// of their Execution and return; its share is all of the work. Results are there for what follows
// in the stream.
#pragma once

#include <span>

#include "kernels/training.h"

namespace invar::cuda {

// The kernels of an order, with the schedules below chosen by shape.
Kernels kernels(Order order);
// Those of training.
TrainingKernels training_kernels(Order order);
void pack_outputs(const PackOutputsParams& p, const Execution& on);
void widen(const WidenParams& p, const Execution& on);
// M and L of attention (numerics 4.1, step 4), of whole sequences; of.out may be computed again.
void attention_sums(Order order, const PartialAttentionParams& p, const Execution& on);

// Ways to compute the same bits: which threads compute what, in which pieces. All choices of tile,
// split and stages are entries of these tables.
struct ProductShape {
  int64_t rows, n, k;     // outputs and inner size of one matrix
  int split_k, matrices;  // 2 matrices: a gated pair
  int multiprocessors;
};
struct ProductSchedule {
  const char* name;
  bool (*can)(const ProductShape&);
  Operation<MatmulParams> matmul;
  Operation<GatedMatmulParams> gated_matmul;
  // Of those that can, the one with the lowest cost is taken: from measured times, to be compared
  // with the others of its table only.
  double (*cost)(const ProductShape&);
};
std::span<const ProductSchedule> product_schedules(Order order);
const ProductSchedule& chosen_schedule(Order order, const ProductShape& shape);

struct AttentionSchedule {
  const char* name;
  Operation<AttentionParams> attention;
  int64_t max_rows;  // chosen for up to so many; the first entry that fits and can is taken
  bool (*can)(const AttentionParams&);
};
constexpr size_t kAttentionScratch = 64 << 20;  // Kernels::attention_scratch of order hopper
std::span<const AttentionSchedule> attention_schedules(Order order);

// Runs recorded steps of an H200's tensor cores on this GPU's. Throws Error, one sentence, when a
// bit differs: then the order hopper is not what this GPU computes.
void check_hopper_steps(Device& device);

// Reads memory of a GPU, for measuring how fast that goes; adds to *sum.
void read(const void* data, size_t bytes, uint64_t* sum, const Execution& on);

}  // namespace invar::cuda
