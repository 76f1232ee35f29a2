#include "speculative/prediction.h"

#include <algorithm>

namespace invar {

Prediction::Prediction(std::span<const int32_t> tokens) {
  auto automaton = std::make_shared<SuffixAutomaton>();
  for (const int32_t token : tokens) automaton->append(token);
  automaton_ = std::move(automaton);
}

std::span<const int32_t> Prediction::next(int32_t most) const {
  const auto tokens = automaton_->tokens();
  if (at_ < 0 || at_ >= std::ssize(tokens)) return {};
  return tokens.subspan(at_, std::min<size_t>(std::max(most, 0), tokens.size() - at_));
}

void Prediction::take(int32_t token) {
  const auto expected = next(1);
  accepted_ += !expected.empty() && expected[0] == token;
  automaton_->follow(match_, token);
  at_ = match_.length > 0 ? automaton_->continuation(match_) : -1;
}

int64_t Prediction::rejected() const {
  return std::max<int64_t>(0, std::ssize(automaton_->tokens()) - accepted_);
}

}  // namespace invar
