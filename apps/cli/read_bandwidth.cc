// The bandwidth of reading memory, the limit of decoding, on a CPU or a GPU.
#include <algorithm>

#include "base/timer.h"
#include "command.h"
#include "kernels/back_end.h"
#include "kernels/peaks.h"

namespace invar::cli {

namespace {

double measure_gpu_read_bandwidth(Device& device) {
  const size_t bytes = std::min(size_t{4} << 30, device.available_bytes() / 2);
  const DeviceArray<std::byte> memory(device, bytes, "the bandwidth measurement");
  const DeviceArray<uint64_t> sum(device, 1, "the bandwidth measurement");
  const std::unique_ptr<Stream> stream = device.make_stream();
  double best = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const Timer timer;
    gpu_back_end().read(memory.data(), bytes, sum.data(), {&device, stream.get()});
    stream->wait();
    best = std::max(best, static_cast<double>(bytes) / timer.seconds());
  }
  return best;
}

}  // namespace

double measure_read_bandwidth(Model& model) {
  if (!model.device().is_host()) return measure_gpu_read_bandwidth(model.device());
  // The model's own arrays when they are beyond the caches, else a buffer that is.
  const size_t bytes = size_t{512} << 20;
  if (static_cast<size_t>(model.weight_bytes()) >= bytes)
    return measure_read_bandwidth(model.pool(), model.weight_arrays());
  const auto device = make_host_device();
  const DeviceArray<std::byte> memory(*device, bytes, "the bandwidth measurement");
  model.pool().run([&](Part part) {
    const auto [begin, end] = part.of(static_cast<int64_t>(bytes), 4096);
    std::fill(memory.data() + begin, memory.data() + end, std::byte{1});
  });
  return measure_read_bandwidth(model.pool(), {memory.data(), bytes});
}

}  // namespace invar::cli
