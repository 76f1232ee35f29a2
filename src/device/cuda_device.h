// NVIDIA GPUs as devices. In a build without CUDA there are none.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"

namespace invar {

// GPUs that this process sees; 0 without a driver or in a build without CUDA.
int cuda_device_count();

// Whether GPU `ordinal` of them can be used: its compute capability is 9.0.
bool cuda_device_is_usable(int ordinal);

// GPU `ordinal`. Throws Error, one sentence, when this build has no CUDA, there is no such GPU, the
// driver is too old for this build, or the GPU is not of compute capability 9.0. Later on any
// operation of the device throws Error when the GPU has failed; the device is of no use then.
std::unique_ptr<Device> make_cuda_device(int ordinal);

// Makes memory that others have as fast for streams to copy from and to as pinned memory, for as
// long as what is returned lives; null where it stays as it is.
std::shared_ptr<void> pin_for_cuda(void* memory, size_t bytes);

// A stream that the caller has made on a device of make_cuda_device, as a Stream: for kernels that
// are to run there. It is the caller's still.
std::unique_ptr<Stream> borrow_cuda_stream(Device& device, uintptr_t stream);

// "NVIDIA H200, 143771 MiB, compute capability 9.0, driver 13.0".
std::string describe_cuda_device(int ordinal);

}  // namespace invar
