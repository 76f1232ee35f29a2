// Every text that occurs in a growing sequence of tokens, in memory linear in its length: Blumer et
// al., "The smallest automaton recognizing the subwords of a text" (1985). Appending a token and
// following one cost constant time on average.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace invar {

class SuffixAutomaton {
 public:
  // A text that occurs in the sequence: the longest end of what was followed so far that does.
  struct Match {
    int32_t state = 0;
    int32_t length = 0;  // tokens
  };

  SuffixAutomaton();

  void append(int32_t token);
  std::span<const int32_t> tokens() const { return tokens_; }

  // The match behind `token`.
  void follow(Match& match, int32_t token) const;
  // To be called with every match that is kept while the sequence grows: its state may have been
  // split.
  void settle(Match& match) const;
  // Where what followed the match's first occurrence begins, in tokens(). REQUIRES: length > 0.
  int32_t continuation(const Match& match) const { return states_[match.state].first_end; }

 private:
  struct State {
    int32_t length = 0;          // of its longest text
    int32_t link = -1;           // the state of the longest shorter text that occurs elsewhere too
    int32_t first_end = 0;       // tokens up to the end of the first occurrence
    std::vector<int32_t> edges;  // tokens that follow
  };

  int32_t target(int32_t state, int32_t token) const;  // or -1
  void connect(int32_t from, int32_t token, int32_t to);
  int32_t add_state(State state);
  int32_t split(int32_t from, int32_t token, int32_t to);

  std::vector<int32_t> tokens_;
  std::vector<State> states_;
  std::unordered_map<uint64_t, int32_t> targets_;  // of (state, token)
  int32_t last_ = 0;                               // the state of the whole sequence
};

}  // namespace invar
