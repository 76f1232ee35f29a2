// Stands in for device/cuda in a build without CUDA.
#include "base/error.h"
#include "device/cuda_device.h"

namespace invar {

int cuda_device_count() {
  return 0;
}

bool cuda_device_is_usable(int) {
  return false;
}

std::unique_ptr<Device> make_cuda_device(int ordinal) {
  fail("--device cuda:{}: this build has no CUDA back end; use --device cpu, or build with CUDA",
       ordinal);
}

std::shared_ptr<void> pin_for_cuda(void*, size_t) {
  return nullptr;
}

std::unique_ptr<Stream> borrow_cuda_stream(Device&, uintptr_t) {
  fail("a stream of a GPU was given and this build has no CUDA back end; build with CUDA");
}

std::string describe_cuda_device(int) {
  return "none";
}

}  // namespace invar
