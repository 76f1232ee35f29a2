#include "places.h"

namespace invar::server {

PlacesHeld::~PlacesHeld() {
  const std::lock_guard lock(places_.mutex_);
  const auto owner = places_.owners_.find(owner_);
  if (owner == places_.owners_.end()) return;
  places_.taken_ -= held_;
  places_.bytes_ -= bytes_;
  owner->second.taken -= held_;
  owner->second.bytes -= bytes_;
  const auto ranked = owner->second.ranked.find(priority_);
  if (ranked_ > 0 && (ranked->second -= ranked_) == 0) owner->second.ranked.erase(ranked);
  if (owner->second.taken == 0 && owner->second.bytes == 0 && owner->second.ranked.empty())
    places_.owners_.erase(owner);
}

bool PlacesHeld::grow_to(size_t answers) {
  const std::lock_guard lock(places_.mutex_);
  Places::Owner& owner = places_.owners_[owner_];
  if (places_.taken_ - held_ + answers > places_.most_ ||
      owner.taken - held_ + answers > places_.most_of_owner())
    return false;
  places_.taken_ += answers - held_;
  owner.taken += answers - held_;
  held_ = answers;
  return true;
}

bool PlacesHeld::hold(size_t bytes) {
  const std::lock_guard lock(places_.mutex_);
  Places::Owner& owner = places_.owners_[owner_];
  if (places_.bytes_ + bytes > places_.most_bytes_ ||
      owner.bytes + bytes > places_.most_bytes_ / places_.owners_share_)
    return false;
  places_.bytes_ += bytes;
  owner.bytes += bytes;
  bytes_ = bytes;
  return true;
}

void PlacesHeld::insist_on(size_t answers) {
  const std::lock_guard lock(places_.mutex_);
  places_.taken_ += answers - held_;
  places_.owners_[owner_].taken += answers - held_;
  held_ = answers;
}

int32_t PlacesHeld::rank(int32_t priority) {
  const std::lock_guard lock(places_.mutex_);
  auto& ranked = places_.owners_[owner_].ranked;
  size_t before = 0;
  for (const auto& [other, count] : ranked)
    if (other <= priority) before += count;
  priority_ = priority;
  ranked_ = held_;
  ranked[priority] += ranked_;
  return static_cast<int32_t>(std::min<size_t>(before, INT32_MAX / 2));
}

}  // namespace invar::server
