// A device's stream as NCCL takes it.
#pragma once

#include "collectives/nccl_library.h"
#include "device/device.h"

namespace invar {

// Null on a host. The calling thread's current GPU is the stream's afterwards.
Nccl::Stream nccl_stream(Device& device, Stream& stream);

}  // namespace invar
