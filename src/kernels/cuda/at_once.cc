#include "kernels/cuda/at_once.h"

namespace invar::cuda {

AtOnce at_once() {
  return {.route_experts = route_experts, .short_attention = short_attention};
}

}  // namespace invar::cuda
