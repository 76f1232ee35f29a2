#include "kernels/at_once.h"

#include "kernels/cuda/at_once.h"

namespace invar {

AtOnce at_once(const Kernels& table) {
  const bool is_gpu = table.order == Order::hopper && table.weights == WeightLayout::rows;
  return is_gpu ? cuda::at_once() : AtOnce();
}

}  // namespace invar
