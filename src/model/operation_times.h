// Where the time of passes goes: by operation, and the host's work for a step.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/timer.h"

namespace invar {

class OperationTimes {
 public:
  struct Entry {
    std::string_view name;  // as in trace.h
    double seconds = 0;
  };

  // `name` outlives this object.
  void add(std::string_view name, double seconds) {
    for (Entry& entry : entries_)
      if (entry.name == name) {
        entry.seconds += seconds;
        return;
      }
    entries_.push_back({name, seconds});
  }
  // In the order in which they were first seen.
  std::span<const Entry> entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

// The host's work for a step beside launching operations and sampling, in its order.
struct HostParts {
  std::string_view plan = "plan";      // whose rows
  std::string_view draft = "draft";    // the drafter's work, operations of its model included
  std::string_view rows = "rows";      // the batch, with the drafts
  std::string_view tables = "tables";  // where each row's keys and values go, and what it reads
  std::string_view commit = "commit";  // results of the walks, blocks
  std::string_view emit = "emit";      // telling the sink

  bool contains(std::string_view name) const {
    for (const std::string_view part : {plan, draft, rows, tables, commit, emit})
      if (part == name) return true;
    return false;
  }
};
inline constexpr HostParts kHostParts;

// Does `work`; its time goes to `times` unless that is null.
template <typename Work>
void timed(OperationTimes* times, std::string_view name, Work work) {
  const Timer timer;
  work();
  if (times) times->add(name, timer.seconds());
}

}  // namespace invar
