// What may come next in an answer that is held to a language: a token is allowed when its bytes go
// on some text of the language.
//
// The state is a number, a function of the tokens so far: a draft branch copies its parent's and
// goes on alone.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sampling/grammar/automaton.h"

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
  std::span<const uint8_t> bytes_of(int32_t token) const;
  size_t vocab() const { return place_of_.size(); }
  size_t longest() const { return longest_; }

 private:
  std::vector<Entry> entries_;
  std::vector<int32_t> place_of_;  // -1: none
  size_t longest_ = 0;
};

// Determinised as far as answers need it. Whoever shares it with other threads holds its lock
// during a call and while using what it returned.
//
// Two automata read one language. `exact_` knows every counter and has a state per place of an
// answer. `near_` forgets counters that no single token can bring to their end, so it has few
// states, and masks belong to those.
//
// Answers that share a constraint share its work, and nothing else: how much an answer may need is
// counted along it alone (ConstraintTally), never by what others have made.
class Constraint {
 public:
  using State = int32_t;
  static constexpr State kDead = grammar::Automaton::kDead;
  // Ways to understand the texts that its tokens may begin with; more are an Error of the answer
  // that needs them.
  static constexpr int64_t kMaxReach = 1'000'000;
  static constexpr size_t kMaxMasks = 512;
  // States and stacks, of all answers; about a hundred bytes each.
  static constexpr size_t kMaxKept = 300'000;

  // Throws UsageError when there is no text in the language.
  Constraint(grammar::Language language, std::shared_ptr<const TokenTable> tokens);

  [[nodiscard]] std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }

  State start() const { return start_; }
  // Behind a token; kDead when it is not allowed. Throws Error when finding that out takes too
  // much.
  State next(State state, int32_t token);
  // Whether the text so far is in the language.
  bool accepts(State state) const { return exact_.accepts(state); }
  // Whether something may follow.
  bool goes_on(State state) const { return exact_.goes_on(state); }
  // Bit i of word i / 64: token i may come. Valid until the next call. Throws Error when finding
  // that out takes more than kMaxReach.
  std::span<const uint64_t> allowed(State state) { return mask(near(state)).tokens; }
  // What allowed() costs: a function of the state.
  int64_t reach(State state) { return mask(near(state)).reach; }
  // States with one number have one mask.
  State near(State state);
  // It has made so much, for all answers, that the next request had better begin anew.
  bool is_full() const { return exact_.size() + near_.size() > kMaxKept; }

 private:
  struct Mask {
    std::vector<uint64_t> tokens;
    int64_t reach = 0;
  };

  const Mask& mask(State near);

  mutable std::mutex mutex_;
  const grammar::Language language_;
  const std::shared_ptr<const TokenTable> tokens_;
  grammar::Automaton exact_, near_;
  State start_;
  std::vector<State> near_of_;  // by exact state; kDead: not known yet
  std::unordered_map<State, Mask> masks_;
  std::vector<State> path_;
  std::vector<int64_t> walked_;  // by near state: the walk that came here last
  int64_t walks_ = 0;
};

// What one answer has needed so far: a function of its tokens. Copyable, as the state.
class ConstraintTally {
 public:
  // Enters that the answer asks what may follow `state`. Throws Error when it has needed more than
  // Constraint::kMaxReach.
  void add(Constraint& constraint, Constraint::State state);

 private:
  std::unordered_set<Constraint::State> asked_;
  int64_t reach_ = 0;
};

}  // namespace invar
