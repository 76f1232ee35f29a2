#include "speculative/replay.h"

#include <algorithm>

#include "base/error.h"
#include "base/timer.h"
#include "numerics/philox.h"

namespace invar {

Replay::Replay(const ReplayOptions& options, std::map<int64_t, std::vector<int32_t>> answers)
    : options_(options), answers_(std::move(answers)) {
  const auto& o = options;
  if (o.num_speculative_tokens < 1 || o.branches < 1 ||
      int64_t{o.num_speculative_tokens} * o.branches > kMaxDraftNodes)
    fail_usage("expected a replayed tree of 1 to {} nodes, found {} levels of {}", kMaxDraftNodes,
               o.num_speculative_tokens, o.branches);
  if (o.vocab < o.branches + 1)
    fail_usage("expected a vocabulary larger than the branches, found {}", o.vocab);
}

void Replay::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  const Timer timer;
  int32_t levels = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto found = answers_.find(requests[i].id);
    if (found != answers_.end()) draft(requests[i], found->second, trees[i]);
    levels = std::max(levels, depth_of(trees[i]));
  }
  while (timer.seconds() < levels * options_.cost_seconds) {
  }
}

void Replay::draft(const DraftRequest& request, const std::vector<int32_t>& answer,
                   DraftTree& tree) const {
  const auto& o = options_;
  const int64_t known = std::ssize(request.tokens) - request.prompt_size;
  int32_t above = -1;
  for (int32_t level = 0; level < o.num_speculative_tokens; ++level) {
    if (known + level >= std::ssize(answer)) return;
    const PhiloxCounter counter = {static_cast<uint32_t>(known + level),
                                   static_cast<uint32_t>(request.id),
                                   static_cast<uint32_t>(request.choice), 0};
    const auto random = philox4x32(counter, o.seed);
    const bool is_last = level + 1 == o.num_speculative_tokens;
    const bool right = random[0] < o.right * 0x1p32 && !(is_last && o.last_is_wrong);
    const int32_t token = answer[known + level];
    // Other tokens follow it in the order of their ids; with a wrong level there is only those.
    const int32_t own = static_cast<int32_t>(random[1] % o.branches);
    const int32_t first = static_cast<int32_t>(tree.size());
    for (int32_t b = 0; b < o.branches; ++b) {
      if (std::ssize(tree) >= request.most) return;
      const int32_t other = (token + 1 + (b + static_cast<int32_t>(random[2] % 7)) % (o.vocab - 1));
      tree.push_back({right && b == own ? token : other % o.vocab, above});
    }
    above = first + own;
  }
}

}  // namespace invar
