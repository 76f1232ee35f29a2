#include "fair_queue.h"

#include <algorithm>
#include <tuple>

namespace invar::server {

void FairQueue::push(Task task) {
  const auto [found, is_new] = owners_.try_emplace(task.owner);
  if (is_new) {
    found->second.taken = now_;
    found->second.since = ++arrivals_;
  }
  found->second.tasks.push_back(std::move(task));
  ++waiting_;
}

std::optional<FairQueue::Task> FairQueue::pop() {
  const auto order = [](const Owner& owner) {
    return std::tuple(owner.running, owner.taken, owner.since);
  };
  auto next = owners_.end();
  for (auto one = owners_.begin(); one != owners_.end(); ++one) {
    const Owner& owner = one->second;
    if (owner.tasks.empty() || owner.running >= most_running_) continue;
    if (big_runs_ && owner.tasks.front().is_big) continue;
    if (next == owners_.end() || order(owner) < order(next->second)) next = one;
  }
  if (next == owners_.end()) return std::nullopt;
  Owner& owner = next->second;
  now_ = std::max(now_, owner.taken);
  ++owner.running, ++running_, --waiting_;
  Task task = std::move(owner.tasks.front());
  owner.tasks.pop_front();
  big_runs_ |= task.is_big;
  return task;
}

void FairQueue::end(const Task& task, int64_t work) {
  if (task.is_big) big_runs_ = false;
  const auto found = owners_.find(task.owner);
  if (found == owners_.end()) return;
  --found->second.running, --running_;
  found->second.taken += work;
  if (found->second.running == 0 && found->second.tasks.empty()) owners_.erase(found);
}

size_t FairQueue::waiting(const std::string& owner) const {
  const auto found = owners_.find(owner);
  return found == owners_.end() ? 0 : found->second.tasks.size();
}

}  // namespace invar::server
