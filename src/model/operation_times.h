// Where the time of forward passes goes, by operation.
#pragma once

#include <span>
#include <string_view>
#include <vector>

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

}  // namespace invar
