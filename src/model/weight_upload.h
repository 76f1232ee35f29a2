// Weights on their way to a device whose memory the host cannot write: they go through a ring of
// pinned buffers, of which threads fill some while others are copied.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>

#include "base/thread_pool.h"
#include "device/device.h"

namespace invar {

class WeightUpload {
 public:
  // Few of them, small: what is written is copied while the caches have it still.
  static constexpr int64_t kBytes = int64_t{8} << 20;
  static constexpr int kBuffers = 6;
  // Each is made when it is first filled. Pinned memory takes long to get: who uploads again keeps
  // it.
  using Buffers = std::array<PinnedArray<std::byte>, kBuffers>;

  // The buffers outlive it.
  WeightUpload(Device& device, Buffers& buffers);

  // `count` units of `bytes` each that go to `target`, `at_once` of them to a thread, as long as
  // a buffer holds so many.
  struct Units {
    std::byte* target;
    int64_t count, bytes, at_once;
  };
  // Calls fill(first, last, where unit `first` lies, number of the share) for all of them on the
  // pool's threads and sends each buffer when it is full; no thread waits for the others before the
  // end. An exception of `fill` is thrown here.
  using Fill = FunctionRef<void(int64_t, int64_t, std::byte*, int)>;
  void fill(ThreadPool& pool, const Units& units, Fill fill);

  // Copies host memory that may be used again at once, at most kBytes.
  void send(std::byte* target, const void* from, size_t bytes);
  // Rows that are in the device's memory already.
  void copy_rows(void* to, size_t to_stride, const void* from, size_t from_stride, size_t width,
                 size_t rows) {
    stream_->copy_rows(to, to_stride, from, from_stride, width, rows);
  }
  // Returns when everything sent is there.
  void wait() { stream_->wait(); }

 private:
  class Filling;

  // A buffer of the ring, when no copy reads it any more.
  std::byte* free_buffer(int64_t number);
  void send_buffer(int64_t number, std::byte* target, size_t bytes);

  Device& device_;
  Buffers& buffers_;
  std::array<std::unique_ptr<Event>, kBuffers> sent_;
  std::mutex mutex_;                // guards the stream while threads fill
  int64_t next_ = 0;                // buffers so far
  std::unique_ptr<Stream> stream_;  // its end waits for its copies, which read the buffers
};

}  // namespace invar
