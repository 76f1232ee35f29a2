#include "admission_slots.h"

namespace invar::server {

HeldSlots::~HeldSlots() {
  const std::lock_guard lock(slots_.mutex_);
  const auto owner = slots_.owners_.find(owner_);
  if (owner == slots_.owners_.end()) return;
  slots_.taken_ -= held_;
  slots_.bytes_ -= bytes_;
  owner->second.taken -= held_;
  owner->second.bytes -= bytes_;
  const auto ranked = owner->second.ranked.find(priority_);
  if (ranked_ > 0 && (ranked->second -= ranked_) == 0) owner->second.ranked.erase(ranked);
  if (owner->second.taken == 0 && owner->second.bytes == 0 && owner->second.ranked.empty())
    slots_.owners_.erase(owner);
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

int32_t HeldSlots::rank(int32_t priority) {
  const std::lock_guard lock(slots_.mutex_);
  auto& ranked = slots_.owners_[owner_].ranked;
  size_t before = 0;
  for (const auto& [other, count] : ranked)
    if (other <= priority) before += count;
  priority_ = priority;
  ranked_ = held_;
  ranked[priority] += ranked_;
  return static_cast<int32_t>(std::min<size_t>(before, INT32_MAX / 2));
}

}  // namespace invar::server
