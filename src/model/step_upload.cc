#include "model/step_upload.h"

#include <algorithm>

#include "base/check.h"

namespace invar {

namespace {
constexpr const char* kWhat = "a step's row tables";
}  // namespace

void StepUpload::begin(const Execution& on, size_t bytes) {
  turn_ = 1 - turn_;
  Source& source = sources_[turn_];
  used_ = 0;
  if (source.sent) source.sent->wait();
  if (bytes > source.memory.size()) {
    source.memory = {*on.device, std::max(bytes, 2 * source.memory.size()), kWhat};
    if (!source.sent) source.sent = on.device->make_event();
  }
  if (!on.device->is_host() && source.memory.size() > mirror_.size()) {
    if (mirror_.size() > 0) on.stream->wait();  // the last step still reads it
    mirror_ = {*on.device, source.memory.size(), kWhat};
  }
  device_begin_ = on.device->is_host() ? source.memory.data() : mirror_.data();
}

void StepUpload::send(const Execution& on) {
  Source& source = sources_[turn_];
  CHECK(used_ <= source.memory.size(), "a step's arrays are larger than was said");
  if (mirror_.size() == 0) return;
  on.stream->upload(mirror_.data(), source.memory.data(), used_);
  on.stream->record(*source.sent);
}

}  // namespace invar
