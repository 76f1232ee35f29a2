// The tokens that may come next in an answer that is held to a language: one is allowed when its
// bytes go on some text of the language.
//
// The state is a value, a function of the tokens so far: a draft branch copies its parent's and
// goes on alone.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sampling/form_memory.h"
#include "sampling/grammar/automaton.h"
#include "sampling/grammar/unique_items.h"

namespace invar {

// The bytes of a vocabulary's tokens, sorted, so that tokens with one beginning are tried together.
class TokenTable {
 public:
  // `bytes[id]`: empty for tokens that no constrained answer may have, such as special ones.
  explicit TokenTable(const std::vector<std::string>& bytes);

  struct Entry {
    std::string bytes;
    int32_t token;
    int32_t shared;  // bytes that the entry before begins with too
  };
  std::span<const Entry> entries() const { return entries_; }
  std::span<const Entry> beginning_with(std::string_view bytes) const;
  std::span<const uint8_t> bytes_of(int32_t token) const;
  size_t vocab() const { return place_of_.size(); }
  size_t longest() const { return longest_; }

 private:
  std::vector<Entry> entries_;
  std::vector<int32_t> place_of_;  // -1: none
  size_t longest_ = 0;
};

// Threads that share it hold its lock during a call and while they use its result.
//
// Two readers of one language. `exact_` knows every counter; where an answer stands in it is a
// value that the answer keeps. `near_` forgets counters that no single token can bring to their
// end, so it has few states, and masks belong to those. Results are remembered for the answers that
// share the constraint, up to a bound, and found again when they were forgotten.
//
// Work is counted, not timed: how much an answer may need is a function of its tokens, and not of
// what others have asked before, nor of the machine.
class Constraint {
 public:
  using State = grammar::Place;
  // Steps to find which tokens may come at one place, and to read one token; more is an Error of
  // the answer that needs them.
  static constexpr int64_t kMostOfMask = 100'000, kMostOfToken = 100'000;
  // Steps after which a step of the engine leaves the answers that are left to later ones.
  static constexpr int64_t kMostOfStep = 200'000;

  // Throws UsageError when there is no text in the language, or when what its first token may be
  // takes too much; FormsFull.
  Constraint(grammar::Language language, std::shared_ptr<const TokenTable> tokens,
             std::shared_ptr<FormMemory> memory = std::make_shared<FormMemory>());
  ~Constraint();

  [[nodiscard]] std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }

  const State& start() const { return start_; }
  // Behind a token; dead when it is not allowed. Adds what that took to `cost`.
  State next(const State& state, int32_t token, int64_t& cost);
  State next(const State& state, int32_t token) {
    int64_t cost = 0;
    return next(state, token, cost);
  }

  struct Mask {
    std::vector<uint64_t> tokens;  // bit i of word i / 64: token i may come
    int64_t cost = 0;              // of finding it, a function of the place
    uint64_t name = 0;             // places with one name have one mask
  };
  // Valid until the next call. Adds to `work` what was done for it now: less than the cost where it
  // is remembered.
  const Mask& mask(const State& state, int64_t& work);
  const Mask& mask(const State& state) {
    int64_t work = 0;
    return mask(state, work);
  }
  std::span<const uint64_t> allowed(const State& state) { return mask(state).tokens; }

  // Whether whole answers are checked beside; a sentence that names what one does not follow, or
  // null.
  bool checks_answers() const { return language_.check() != nullptr; }
  const char* fault_of(std::string_view answer) const;
  std::string_view text_of(int32_t token) const;
  const TokenTable& tokens() const { return *tokens_; }
  // Where an answer begins in arrays whose items must differ, if there are any.
  std::optional<grammar::UniqueItems> unique_items() const;

  // The bytes that it takes: the language and the mask of its start, and the results that are
  // remembered.
  size_t language_bytes() const {
    return language_.bytes() + start_mask_.tokens.size() * sizeof(uint64_t);
  }
  size_t remembered_bytes() const {
    return near_.bytes() + masks_bytes_ + walked_.capacity() * sizeof(int32_t);
  }
  // Gives back what is remembered. The mask of the start stays, so that an answer begins without
  // work.
  void forget();

 private:
  Mask find(grammar::Automaton::State near, int64_t& work);
  void walk(grammar::Automaton::State near, Mask& mask);
  void count_remembered();

  mutable std::mutex mutex_;
  const grammar::Language language_;
  const std::shared_ptr<const TokenTable> tokens_;
  const std::shared_ptr<FormMemory> memory_;
  grammar::Stacks exact_;  // empty between calls
  grammar::Automaton near_;
  State start_;
  Mask start_mask_;
  std::unordered_map<grammar::Automaton::State, Mask> masks_;
  size_t masks_bytes_ = 0, counted_bytes_ = 0;
  std::vector<grammar::Automaton::State> path_;
  std::vector<int32_t> walked_;  // by edge of near_: the walk that took it last
  int32_t walks_ = 0;
};

// The work that one answer has needed so far: a function of its tokens. Copyable, as the state.
// Each function throws Error when that is too much.
class ConstraintTally {
 public:
  // Steps for all places of an answer, and more for each token.
  static constexpr int64_t kMost = 1'000'000, kMoreOfToken = 2'000;

  // The answer asks what may come.
  void add(const Constraint::Mask& mask);
  // It read a token.
  void add_token(int64_t cost);

 private:
  void add_cost(int64_t cost);

  std::unordered_set<uint64_t> asked_;
  int64_t left_ = kMost;
};

}  // namespace invar
