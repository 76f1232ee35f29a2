// Where the time of passes goes, by operation.
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

// Does `work`; its time goes to `times` unless that is null.
template <typename Work>
void timed(OperationTimes* times, std::string_view name, Work work) {
  const Timer timer;
  work();
  if (times) times->add(name, timer.seconds());
}

}  // namespace invar
