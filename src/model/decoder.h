// A model ready to run on one device as one rank: what it is, its weights, the kernels it uses.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "model/arithmetic.h"
#include "model/decoder_weights.h"
#include "model/rope_table.h"

namespace invar {

struct Decoder {
  DecoderSpec spec;
  Arithmetic arithmetic;
  Device* device;    // not owned, as the pool and the weights
  ThreadPool* pool;  // null on a GPU: kernels are launched, not shared out
  Kernels kernels;
  const DecoderWeights* weights;
  RopeTable rope;

  // Runs one operation on the whole team.
  template <typename Params>
  void run(void (*operation)(const Params&, Part), const Params& params) const {
    if (pool)
      pool->run([&](Part part) { operation(params, part); });
    else
      operation(params, Part{});
  }
};

}  // namespace invar
