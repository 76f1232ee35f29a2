#include "model/weight_upload.h"

namespace invar {

WeightUpload::WeightUpload(Device& device) {
  for (Buffer& buffer : buffers_)
    buffer = {{device, kBytes, "the loading of weights"}, device.make_event()};
  stream_ = device.make_stream();
}

std::byte* WeightUpload::next() {
  current_ = (current_ + 1) % kBuffers;
  buffers_[current_].sent->wait();
  return buffers_[current_].bytes.data();
}

void WeightUpload::send(void* to, size_t bytes) {
  stream_->upload(to, buffers_[current_].bytes.data(), bytes);
  stream_->record(*buffers_[current_].sent);
}

}  // namespace invar
