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
  // Rows that are in the device's memory already.
  void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t width,
                 size_t rows) {
    stream_->copy_rows(to, to_stride, from, from_stride, width, rows);
  }
  // Returns when everything sent is there.
  void wait() { stream_->wait(); }

 private:
  static constexpr int kBuffers = 3;

  struct Buffer {  // made when it is first filled
    PinnedArray<std::byte> bytes;
    std::unique_ptr<Event> sent;
  };

  Device& device_;
  Buffer buffers_[kBuffers];
  int current_ = 0;
  std::unique_ptr<Stream> stream_;  // before the buffers, which its copies read, it ends
};

}  // namespace invar
