#include "model/weight_upload.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace invar {

WeightUpload::WeightUpload(Device& device, Buffers& buffers)
    : device_(device), buffers_(buffers), stream_(device.make_stream()) {
  for (auto& event : sent_) event = device.make_event();
}

std::byte* WeightUpload::free_buffer(int64_t number) {
  sent_[number % kBuffers]->wait();
  auto& buffer = buffers_[number % kBuffers];
  if (!buffer.data()) buffer = {device_, kBytes, "the loading of weights"};
  return buffer.data();
}

void WeightUpload::send_buffer(int64_t number, std::byte* target, size_t bytes) {
  const std::lock_guard lock(mutex_);
  stream_->upload(target, buffers_[number % kBuffers].data(), bytes);
  stream_->record(*sent_[number % kBuffers]);
}

void WeightUpload::send(std::byte* target, const void* from, size_t bytes) {
  CHECK(bytes <= size_t{kBytes}, "more than a buffer holds");
  std::memcpy(free_buffer(next_), from, bytes);
  send_buffer(next_++, target, bytes);
}

// Tasks of some units each are claimed in their order, so that all but the last buffer that has
// been begun are being finished by threads that have it: who waits for a buffer does not wait for
// ever.
class WeightUpload::Filling {
 public:
  Filling(WeightUpload& upload, const Units& units, Fill fill)
      : upload_(upload),
        units_(units),
        fill_(fill),
        at_once_(std::clamp<int64_t>(kBytes / units.bytes, 1, units.at_once)),
        of_buffer_(kBytes / (at_once_ * units.bytes) * at_once_),
        parts_(static_cast<size_t>((units.count + of_buffer_ - 1) / of_buffer_)),
        first_(upload.next_) {
    CHECK(units.bytes <= kBytes, "a row of weights too long");
    for (int64_t i = 0; i < std::ssize(parts_); ++i) parts_[i].left = end_of(i) - i * of_buffer_;
    upload.next_ += std::ssize(parts_);
  }

  void work(int share) {
    try {
      for (int64_t at; (at = claimed_.fetch_add(at_once_)) < units_.count;) {
        const int64_t i = at / of_buffer_, end = std::min(at + at_once_, end_of(i));
        std::byte* buffer = buffer_of(i);
        if (!buffer) return;
        fill_(at, end, buffer + (at - i * of_buffer_) * units_.bytes, share);
        if (parts_[i].left.fetch_sub(end - at) == end - at) send(i);
      }
    } catch (...) {
      give_up();
      throw;
    }
  }

 private:
  // The part of the units that one buffer takes.
  struct BufferPart {
    std::atomic<bool> is_taken = false, is_sent = false;
    std::atomic<std::byte*> buffer = nullptr;
    std::atomic<int64_t> left = 0;  // units that are not written
  };

  int64_t end_of(int64_t i) const { return std::min((i + 1) * of_buffer_, units_.count); }

  // Null when another thread has failed.
  std::byte* buffer_of(int64_t i) {
    BufferPart& part = parts_[i];
    if (!part.is_taken.exchange(true)) {
      if (i >= kBuffers) parts_[i - kBuffers].is_sent.wait(false);
      if (!has_failed_) set(part.buffer, upload_.free_buffer(first_ + i));
    }
    part.buffer.wait(nullptr);
    return has_failed_ ? nullptr : part.buffer.load();
  }

  void send(int64_t i) {
    const int64_t begin = i * of_buffer_;
    upload_.send_buffer(first_ + i, units_.target + begin * units_.bytes,
                        static_cast<size_t>((end_of(i) - begin) * units_.bytes));
    set(parts_[i].is_sent, true);
  }

  void give_up() {
    has_failed_ = true;
    for (BufferPart& part : parts_) {
      set(part.is_sent, true);
      if (!part.buffer.load()) set(part.buffer, &nothing_);
    }
  }

  template <typename T>
  static void set(std::atomic<T>& value, T to) {
    value = to;
    value.notify_all();
  }

  WeightUpload& upload_;
  const Units units_;
  const Fill fill_;
  const int64_t at_once_, of_buffer_;
  std::vector<BufferPart> parts_;
  const int64_t first_;  // number of the first buffer
  std::atomic<int64_t> claimed_ = 0;
  std::atomic<bool> has_failed_ = false;
  std::byte nothing_{};
};

void WeightUpload::fill(ThreadPool& pool, const Units& units, Fill fill) {
  if (units.count == 0) return;
  Filling filling(*this, units, fill);
  pool.run([&](Part own) { filling.work(own.index); });
}

}  // namespace invar
