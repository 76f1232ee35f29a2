// The kernels of GPUs as one row: what the rest of the tree needs of a back end beside the tables
// that it fills. Another kind of GPU is another row and a folder like kernels/cuda.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/at_once.h"
#include "kernels/cuda/chunk_digests.h"
#include "kernels/cuda/finite.h"
#include "kernels/training.h"

namespace invar {

using GpuValues = cuda::GpuValues;

struct BackEnd {
  // The operations of an order, of training in it, and of the baseline (numerics 10).
  Kernels (*kernels)(Order order);
  TrainingKernels (*training_kernels)(Order order);
  Kernels (*baseline_kernels)();
  // The joined operations beside the table of order hopper.
  AtOnce (*at_once)();
  // Replay recorded sums of the order hopper, and of its products of e4m3 numbers. Throw Error, one
  // sentence, for a GPU that adds in another way.
  void (*check_hopper_steps)(Device& device);
  void (*check_hopper8_steps)(Device& device);
  // A training step's weights become the forward's where they are.
  Operation<PackOutputsParams> pack_outputs;
  Operation<WidenParams> widen;
  // For each array the index of the first NaN or infinity, or -1. Waits for the GPU.
  std::vector<int64_t> (*first_non_finite)(Device& device, std::span<const GpuValues> all);
  // The digests of an array's chunks (numerics 8), one array after the other. Waits for the GPU.
  std::vector<Digest> (*chunk_digests)(Device& device, std::span<const GpuValues> all,
                                       int64_t chunk);
  // Reads the GPU's memory, for measuring how fast that goes; adds to *sum.
  void (*read)(const void* data, size_t bytes, uint64_t* sum, const Execution& on);
};

// Does nothing useful in a build without a GPU's toolkit, where no such device can be opened.
const BackEnd& gpu_back_end();

}  // namespace invar
