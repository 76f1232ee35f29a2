#include "sampling/history.h"

#include <algorithm>

namespace invar {

TokenHistory::TokenHistory(std::span<const int32_t> prompt) {
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  entries_.reserve(tokens.size());
  for (const int32_t token : tokens) entries_.push_back({token, 0});
}

void TokenHistory::push(int32_t token) {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), token,
                             [](const Entry& e, int32_t t) { return e.token < t; });
  if (at == entries_.end() || at->token != token) at = entries_.insert(at, {token, 0});
  ++at->generated;
}

}  // namespace invar
