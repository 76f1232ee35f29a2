#include "cuda_check.h"

#include <cstdlib>

#include "kernels/select.h"

namespace invar {

void CudaTest::SetUp() {
  const char* required = std::getenv("INVAR_REQUIRE");
  if (required && std::string(required).find("cuda") != std::string::npos) {
    gpu_ = make_cuda_device(0);
  } else if (cuda_device_count() == 0) {
    GTEST_SKIP() << "NOT RUN: this machine has no GPU";
  } else {
    gpu_ = make_cuda_device(0);
  }
  stream_ = gpu_->make_stream();
}

Kernels CudaTest::cpu(Order order) {
  return select_kernels(order, "auto");
}

std::vector<float> random_floats(Random& random, int64_t count) {
  std::vector<float> values(count);
  for (float& x : values) x = random.uniform();
  return values;
}

}  // namespace invar
