#include "speculative/suffix_lookup.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

namespace {

constexpr int32_t kEnd = -1;  // stands between two answers of a corpus; no sequence has it
constexpr int64_t kMostCorpora = 1024;

}  // namespace

SuffixLookup::SuffixLookup(const SuffixLookupOptions& options) : options_(options) {
  const auto& o = options;
  if (o.num_speculative_tokens < 1 || o.num_speculative_tokens > kMaxDraftNodes)
    fail_usage("expected num_speculative_tokens from 1 to {}, found {}", kMaxDraftNodes,
               o.num_speculative_tokens);
  if (!(o.max_spec_factor > 0 && o.max_spec_factor <= kMaxDraftNodes))
    fail_usage("expected suffix_decoding_max_spec_factor above 0 and at most {}, found {}",
               kMaxDraftNodes, o.max_spec_factor);
  if (o.min_match < 1) fail_usage("expected a match of at least 1 token, found {}", o.min_match);
}

void SuffixLookup::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const Sequence& sequence = follow(requests[i]);
    if (draft_prediction(sequence, requests[i].most, trees[i])) continue;
    const bool earlier = sequence.earlier.match.length > sequence.own.match.length;
    draft(earlier ? sequence.earlier : sequence.own, requests[i].most, trees[i]);
  }
}

SuffixLookup::Sequence& SuffixLookup::follow(const DraftRequest& request) {
  auto [it, is_new] = sequences_.try_emplace(request.id);
  Sequence& s = it->second;
  if (is_new) {
    s.own.automaton = std::make_shared<SuffixAutomaton>();
    if (!request.corpus.empty() && options_.corpus_tokens > 0)
      s.earlier.automaton = corpus(std::string(request.corpus));
    if (!request.prediction.empty()) s.predicted.emplace(request.prediction);
    s.prompt_size = request.prompt_size;
    s.corpus = request.corpus;
  }
  if (s.earlier.automaton) s.earlier.automaton->settle(s.earlier.match);  // others made it grow
  for (; s.seen < std::ssize(request.tokens); ++s.seen) {
    const int32_t token = request.tokens[s.seen];
    if (s.predicted && s.seen >= s.prompt_size) s.predicted->take(token);
    if (s.earlier.automaton) s.earlier.automaton->follow(s.earlier.match, token);
    // Followed before it is appended: the match is an earlier occurrence.
    s.own.automaton->follow(s.own.match, token);
    s.own.automaton->append(token);
    s.own.automaton->settle(s.own.match);
  }
  return s;
}

// False where the prediction has nothing to say, or something that the sequence knows better.
bool SuffixLookup::draft_prediction(const Sequence& s, int32_t most, DraftTree& tree) const {
  if (!s.predicted) return false;
  const bool begins = s.seen == s.prompt_size;
  if (!begins && s.predicted->match_length() < std::max(1, s.own.match.length)) return false;
  for (const int32_t token : s.predicted->next(std::min(most, options_.num_speculative_tokens)))
    tree.push_back({token, static_cast<int32_t>(tree.size()) - 1});
  return !tree.empty();
}

void SuffixLookup::draft(const Text& text, int32_t most, DraftTree& tree) const {
  if (text.match.length < options_.min_match) return;
  const auto tokens = text.automaton->tokens();
  const int32_t begin = text.automaton->continuation(text.match);
  const double sure =
      std::min<double>(kMaxDraftNodes, options_.max_spec_factor * text.match.length);
  const int32_t size =
      std::min({most, options_.num_speculative_tokens, std::max(1, static_cast<int32_t>(sure)),
                static_cast<int32_t>(tokens.size()) - begin});
  for (int32_t i = 0; i < size && tokens[begin + i] != kEnd; ++i)
    tree.push_back({tokens[begin + i], i - 1});
}

// Its own, if it is new: sequences that live at the same time see each other's answers.
std::shared_ptr<SuffixAutomaton> SuffixLookup::corpus(const std::string& name) {
  if (const auto found = corpus_of_.find(name); found != corpus_of_.end()) {
    corpora_.splice(corpora_.begin(), corpora_, found->second);
    return found->second->second;
  }
  corpora_.emplace_front(name, std::make_shared<SuffixAutomaton>());
  corpus_of_.emplace(corpora_.front().first, corpora_.begin());
  forget_beyond_limits();
  return corpora_.front().second;
}

void SuffixLookup::keep(const std::string& name, std::span<const int32_t> answer) {
  const std::shared_ptr<SuffixAutomaton> automaton = corpus(name);
  for (const int32_t token : answer) automaton->append(token);
  automaton->append(kEnd);
  kept_tokens_ += std::ssize(answer) + 1;
  forget_beyond_limits();
}

// A follower of a corpus that is forgotten keeps it until it ends.
void SuffixLookup::forget_beyond_limits() {
  while (kept_tokens_ > options_.corpus_tokens || std::ssize(corpora_) > kMostCorpora) {
    kept_tokens_ -= std::ssize(corpora_.back().second->tokens());
    corpus_of_.erase(corpora_.back().first);
    corpora_.pop_back();
  }
}

void SuffixLookup::forget(int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  const Sequence& s = found->second;
  const auto answer = s.own.automaton->tokens().subspan(s.prompt_size);
  if (s.earlier.automaton && !answer.empty()) keep(s.corpus, answer);
  sequences_.erase(found);
}

}  // namespace invar
