#include "speculative/prompt_lookup.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

PromptLookup::PromptLookup(const PromptLookupOptions& options) : options_(options) {
  const auto& o = options;
  if (o.prompt_lookup_min < 1 || o.prompt_lookup_max < o.prompt_lookup_min)
    fail_usage("expected 1 <= prompt_lookup_min <= prompt_lookup_max, found {} and {}",
               o.prompt_lookup_min, o.prompt_lookup_max);
  if (o.num_speculative_tokens < 1 || o.num_speculative_tokens > kMaxDraftNodes)
    fail_usage("expected num_speculative_tokens from 1 to {}, found {}", kMaxDraftNodes,
               o.num_speculative_tokens);
}

// The prefix function of Knuth, Morris and Pratt over the reversed sequence: border[i] is the
// length of the longest beginning of it (an end of the sequence), cut at `max`, that ends at i.
int64_t find_continuation(std::span<const int32_t> tokens, int32_t min, int32_t max,
                          std::vector<int32_t>& border) {
  const int64_t n = std::ssize(tokens);
  const auto at = [&](int64_t i) { return tokens[n - 1 - i]; };
  border.resize(std::max<size_t>(border.size(), static_cast<size_t>(max)));
  int32_t longest = 0, length = 0;
  int64_t found = -1;
  for (int64_t i = 1; i < n; ++i) {
    while (length > 0 && at(i) != at(length)) length = border[length - 1];
    if (at(i) == at(length)) ++length;
    // Among equals the later one in the reversed sequence is the earlier in the sequence.
    if (length >= longest && length > 0) longest = length, found = i - length + 1;
    if (i < max) border[i] = length;
    if (length == max) length = border[max - 1];
  }
  if (longest < min) return -1;
  return n - found;  // reversed places [found, found + length) are tokens [.., n - found)
}

void PromptLookup::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    const int64_t begin = find_continuation(request.tokens, options_.prompt_lookup_min,
                                            options_.prompt_lookup_max, border_);
    if (begin < 0) continue;
    const int64_t end =
        std::min<int64_t>(std::ssize(request.tokens),
                          begin + std::min(request.most, options_.num_speculative_tokens));
    for (int64_t at = begin; at < end; ++at)
      trees[i].push_back({request.tokens[at], static_cast<int32_t>(at - begin) - 1});
  }
}

}  // namespace invar
