#include "admission_slots.h"

namespace invar::server {

void HeldSlots::give_back() {
  const std::lock_guard lock(slots_.mutex_);
  const auto owner = slots_.owners_.find(owner_);
  if (owner == slots_.owners_.end()) return;
  slots_.taken_ -= held_;
  slots_.bytes_ -= bytes_;
  owner->second.taken -= held_;
  owner->second.bytes -= bytes_;
  held_ = bytes_ = 0;
  if (owner->second.taken == 0 && owner->second.bytes == 0) slots_.owners_.erase(owner);
}

bool HeldSlots::grow_to(size_t answers) {
  const std::lock_guard lock(slots_.mutex_);
  AdmissionSlots::Owner& owner = slots_.owners_[owner_];
  if (slots_.taken_ - held_ + answers > slots_.most_ ||
      owner.taken - held_ + answers > slots_.most_of_owner())
    return false;
  slots_.taken_ += answers - held_;
  owner.taken += answers - held_;
  held_ = answers;
  return true;
}

bool HeldSlots::hold(size_t bytes) {
  const std::lock_guard lock(slots_.mutex_);
  AdmissionSlots::Owner& owner = slots_.owners_[owner_];
  if (slots_.bytes_ + bytes > slots_.most_bytes_ ||
      owner.bytes + bytes > slots_.most_bytes_of_owner())
    return false;
  slots_.bytes_ += bytes;
  owner.bytes += bytes;
  bytes_ += bytes;
  return true;
}

void HeldSlots::insist_on(size_t answers) {
  const std::lock_guard lock(slots_.mutex_);
  slots_.taken_ += answers - held_;
  slots_.owners_[owner_].taken += answers - held_;
  held_ = answers;
}

int64_t HeldSlots::owner_number() const {
  return static_cast<int64_t>(std::hash<std::string>()(owner_) | 1);  // 0 is nobody
}

}  // namespace invar::server
