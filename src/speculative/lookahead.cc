#include "speculative/lookahead.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

namespace {

// The child of `parent` with this token, added if there is room for it; else -1.
int32_t add_child(DraftTree& tree, int32_t parent, int32_t token, int32_t most) {
  if (const int32_t found = child_with(tree, parent, token); found >= 0) return found;
  if (std::ssize(tree) >= most) return -1;
  tree.push_back({token, parent});
  return static_cast<int32_t>(tree.size()) - 1;
}

}  // namespace

Lookahead::Lookahead(const LookaheadOptions& options) : options_(options) {
  const auto& o = options;
  if (o.ngram < 2) fail_usage("expected lookahead n-grams of at least 2 tokens, found {}", o.ngram);
  if (o.window < 0 || o.guesses < 1)
    fail_usage("expected a lookahead window of 0 or more and at least one guess, found {} and {}",
               o.window, o.guesses);
  if (int64_t{o.window + o.guesses} * rows() > kMaxDraftNodes)
    fail_usage(
        "expected (window + guesses) * (ngram - 1) of at most {} rows for lookahead, found "
        "({} + {}) * {}",
        kMaxDraftNodes, o.window, o.guesses, rows());
}

void Lookahead::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    Sequence& sequence = sequences_[request.id];
    learn_from(sequence, request.tokens);
    add_guesses(sequence, request.tokens.back(), request.most, trees[i]);
    add_window(sequence, request.tokens, request.most, trees[i]);
  }
}

// The latest n-gram of a token is tried first; of too many the one that was not seen for longest
// goes.
void Lookahead::learn(Sequence& sequence, int32_t first, Ngram rest) const {
  std::list<Ngram>& known = sequence.pool[first];
  const auto found = std::ranges::find(known, rest);
  if (found != known.end())
    known.splice(known.begin(), known, found);
  else
    known.push_front(std::move(rest));
  if (std::ssize(known) > options_.guesses) known.pop_back();
}

void Lookahead::learn_from(Sequence& sequence, std::span<const int32_t> tokens) const {
  for (; sequence.seen + options_.ngram <= std::ssize(tokens); ++sequence.seen) {
    const auto rest = tokens.subspan(sequence.seen + 1, rows());
    learn(sequence, tokens[sequence.seen], Ngram(rest.begin(), rest.end()));
  }
}

void Lookahead::add_guesses(const Sequence& sequence, int32_t last, int32_t most,
                            DraftTree& tree) const {
  const auto known = sequence.pool.find(last);
  if (known == sequence.pool.end()) return;
  for (const Ngram& rest : known->second) {
    int32_t at = -1;
    for (size_t i = 0; i < rest.size() && (i == 0 || at >= 0); ++i)
      at = add_child(tree, at, rest[i], most);
  }
}

// Row 0 is a chain below the root, and what stands in row r, column c is below (r - 1, c): the
// target reads the window's diagonals where they stand in the answer.
void Lookahead::add_window(Sequence& sequence, std::span<const int32_t> tokens, int32_t most,
                           DraftTree& tree) const {
  const int32_t width = options_.window;
  if (width == 0) return;
  if (sequence.window.empty()) {  // anything will do to begin with; the prompt's tokens go together
    std::vector<int32_t>& row = sequence.window.emplace_back();
    for (int32_t c = 0; c < width; ++c) row.push_back(tokens[c % std::ssize(tokens)]);
  }
  sequence.node_of.assign(sequence.window.size(), std::vector<int32_t>(width, -1));
  for (size_t r = 0; r < sequence.window.size(); ++r)
    for (int32_t c = 0; c < width; ++c) {
      const bool is_below_root = r == 0 && c == 0;
      const int32_t above = is_below_root ? -1
                            : r == 0      ? sequence.node_of[0][c - 1]
                                          : sequence.node_of[r - 1][c];
      if (above < 0 && !is_below_root) continue;  // there was no room for it
      sequence.node_of[r][c] = add_child(tree, above, sequence.window[r][c], most);
    }
}

// tokens[0] is the likeliest after the root, tokens[1 + i] after node i.
void Lookahead::observe_argmax(int64_t id, std::span<const int32_t> tokens) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second.node_of.empty()) return;
  Sequence& s = found->second;
  const std::vector<int32_t> youngest = std::move(s.node_of.back());
  s.node_of.clear();
  std::vector<int32_t> row = s.window.back();
  for (size_t c = 0; c < row.size(); ++c) {
    if (youngest[c] < 0 || youngest[c] + 1 >= std::ssize(tokens)) continue;  // it was not computed
    row[c] = tokens[youngest[c] + 1];
    if (std::ssize(s.window) < rows()) continue;  // the window has not its rows yet
    Ngram rest;
    for (size_t r = 1; r < s.window.size(); ++r) rest.push_back(s.window[r][c]);
    rest.push_back(row[c]);
    learn(s, s.window[0][c], std::move(rest));
  }
  s.window.push_back(std::move(row));
  if (std::ssize(s.window) > rows()) s.window.erase(s.window.begin());
}

}  // namespace invar
