#include "collectives/nccl_stream.h"

#include "device/cuda/cuda_stream.h"

namespace invar {

Nccl::Stream nccl_stream(Device& device, Stream& stream) {
  return device.is_host() ? nullptr : static_cast<CudaStream&>(stream).use();
}

}  // namespace invar
