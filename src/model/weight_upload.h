// Weights on their way to a device whose memory the host cannot write: they go through pinned
// buffers, of which threads fill one while the others are copied.
#pragma once

#include <cstddef>
#include <memory>

#include "device/device.h"

namespace invar {

class WeightUpload {
 public:
  static constexpr size_t kBytes = size_t{32} << 20;  // of a buffer

  explicit WeightUpload(Device& device);

  // A buffer of kBytes that no copy reads.
  std::byte* next();
  // Copies the first `bytes` of the buffer that next() gave last to the device.
  void send(void* to, size_t bytes);
  // Returns when everything sent is there.
  void wait() { stream_->wait(); }

 private:
  static constexpr int kBuffers = 3;

  struct Buffer {
    PinnedArray<std::byte> bytes;
    std::unique_ptr<Event> sent;
  };

  Buffer buffers_[kBuffers];
  int current_ = 0;
  std::unique_ptr<Stream> stream_;  // before the buffers, which its copies read, it ends
};

}  // namespace invar
