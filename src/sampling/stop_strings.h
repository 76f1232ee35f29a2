// Finds stop strings in text that arrives in pieces, and holds back what could become one.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace invar {

// The stop strings of a request, as an automaton (Aho and Corasick, 1975) that all of its answers
// read. Copies are one.
class StopSet {
 public:
  StopSet() = default;
  // Each counts once. None must be empty (UsageError).
  StopSet(const std::vector<std::string>& stops);
  StopSet(std::initializer_list<std::string> stops) : StopSet(std::vector<std::string>(stops)) {}

  // In the order in which they were given.
  const std::vector<std::string>& strings() const;
  bool operator==(const StopSet& other) const { return strings() == other.strings(); }
  size_t memory_bytes() const;

  // A state is the longest end of the text that begins a stop string; 0: nothing does.
  using State = int32_t;
  State next(State state, char byte) const;
  // Bytes of that end.
  size_t length(State state) const;
  // Bytes of the longest stop string that ends here; 0: none does.
  size_t stop_length(State state) const;

 private:
  struct Automaton;
  std::shared_ptr<const Automaton> automaton_;  // null: there are no stop strings
};

class StopStrings {
 public:
  // `include` keeps the stop string in the text.
  explicit StopStrings(StopSet stops = {}, bool include = false)
      : stops_(std::move(stops)), include_(include) {}

  // Takes a piece of text and appends to `out` what can be shown now. True when a stop string is
  // complete: the one that ends first, of two that end together the longer one. The text after it
  // is dropped. Where it does not `count`, none ends in this piece.
  bool push(std::string_view piece, std::string& out, bool counts = true);
  // The one that is complete, or empty.
  const std::string& found() const { return found_; }
  // The end without a stop: appends what was held back.
  void finish(std::string& out);

 private:
  StopSet stops_;
  bool include_;
  StopSet::State state_ = 0;
  std::string held_, found_;
};

}  // namespace invar
