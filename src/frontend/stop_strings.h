// Finds stop strings in text that arrives in pieces, and holds back what could become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace invar {

class StopStrings {
 public:
  // Strings must not be empty (UsageError). `include` keeps the stop string in the text.
  explicit StopStrings(std::vector<std::string> stops = {}, bool include = false);

  // Takes a piece of text and appends to `out` what can be shown now. True when a stop string is
  // complete; the text after it is dropped.
  bool push(std::string_view piece, std::string& out);
  // The one that is complete, or empty.
  const std::string& found() const { return found_; }
  // The end without a stop: appends what was held back.
  void finish(std::string& out);

 private:
  std::vector<std::string> stops_;
  bool include_;
  std::string held_, found_;
};

}  // namespace invar
