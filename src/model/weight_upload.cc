#include "model/weight_upload.h"

namespace invar {

WeightUpload::WeightUpload(Device& device) : device_(device), stream_(device.make_stream()) {}

std::byte* WeightUpload::next() {
  current_ = (current_ + 1) % kBuffers;
  Buffer& buffer = buffers_[current_];
  if (buffer.sent)
    buffer.sent->wait();
  else
    buffer = {{device_, kBytes, "the loading of weights"}, device_.make_event()};
  return buffer.bytes.data();
}

void WeightUpload::send(void* to, size_t bytes) {
  stream_->upload(to, buffers_[current_].bytes.data(), bytes);
  stream_->record(*buffers_[current_].sent);
}

}  // namespace invar
