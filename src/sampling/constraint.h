// What may come next in an answer that is held to a language: a token is allowed when its bytes go
// on some text of the language.
//
// The state is a number, a function of the tokens so far: a draft branch copies its parent's and
// goes on alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sampling/grammar/nfa.h"

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

// Determinised as far as answers need it. Not for several threads at once.
//
// Answers that share a constraint share its work, and nothing else: how much an answer may need is
// counted along it alone (ConstraintTally), never by what others have made.
class Constraint {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;
  // More are an Error of the answer that needs them.
  static constexpr int64_t kMaxStates = 20'000;
  static constexpr size_t kMaxMasks = 512;

  Constraint(grammar::Nfa language, std::shared_ptr<const TokenTable> tokens);

  State start() const { return 0; }
  // Behind a token; kDead when it is not allowed.
  State next(State state, int32_t token);
  // Whether the text so far is in the language.
  bool accepts(State state) const { return states_[state].accepts; }
  // Whether something may follow.
  bool goes_on(State state) const { return states_[state].goes_on; }
  // Bit i of word i / 64: token i may come. Valid until the next call. Throws Error when finding
  // that out takes more than kMaxStates states.
  std::span<const uint64_t> allowed(State state) { return mask(state).tokens; }
  // Different states behind the beginnings of the tokens that may come: a function of the state.
  int64_t reach(State state) { return mask(state).reach; }
  // It has made so many states, for all answers, that the next request had better begin anew.
  bool is_full() const { return std::ssize(states_) > kMaxStates; }

 private:
  static constexpr State kUnknown = -2;
  using Set = std::vector<grammar::Nfa::State>;
  struct Node {
    Set set;
    bool accepts = false, goes_on = false;
    std::vector<State> next;  // by byte; empty until it is asked for
    int64_t walk = 0;         // the last one that came here
  };

  struct Mask {
    std::vector<uint64_t> tokens;
    int64_t reach = 0;
  };

  const Mask& mask(State state);
  State step(State state, uint8_t byte);
  State add(Set set);
  void close(Set& set) const;

  const grammar::Nfa language_;
  const std::shared_ptr<const TokenTable> tokens_;
  std::vector<Node> states_;
  std::map<Set, State> known_;
  std::unordered_map<State, Mask> masks_;
  std::vector<State> path_;
  int64_t walks_ = 0;
};

// The states that one answer has needed so far: a function of its tokens. Copyable, as the state.
class ConstraintTally {
 public:
  // Enters that the answer asks what may follow `state`. Throws Error when it has needed more than
  // Constraint::kMaxStates states.
  void add(Constraint& constraint, Constraint::State state);

 private:
  std::unordered_set<Constraint::State> asked_;
  int64_t reach_ = 0;
};

}  // namespace invar
