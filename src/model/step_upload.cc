#include "model/step_upload.h"

#include <algorithm>

#include "base/check.h"

namespace invar {

void StepUpload::begin(const Execution& on, size_t bytes) {
  if (sent_) sent_->wait();  // the end of its step has waited already, as a rule
  if (bytes > host_.size()) grow(*on.device, std::max(bytes, 2 * host_.size()));
  used_ = 0;
}

void StepUpload::grow(Device& device, size_t bytes) {
  const char* what = "a step's row tables";
  host_ = {device, bytes, what};
  if (!device.is_host()) mirror_ = {device, bytes, what};
  device_begin_ = device.is_host() ? host_.data() : mirror_.data();
  if (!sent_) sent_ = device.make_event();
}

void StepUpload::send(const Execution& on) {
  CHECK(used_ <= host_.size(), "a step's arrays are larger than was said");
  if (mirror_.size() == 0) return;
  on.stream->upload(mirror_.data(), host_.data(), used_);
  on.stream->record(*sent_);
}

}  // namespace invar
