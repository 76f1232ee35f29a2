#include "sampling/constraint_cursor.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

constexpr const char* kGrammarTooLarge = "the grammar has too many states along the answer";

}  // namespace

ConstraintCursor::ConstraintCursor(std::shared_ptr<Constraint> constraint,
                                   std::shared_ptr<const ThoughtRules> thought, int32_t vocab)
    : constraint_(std::move(constraint)),
      thought_(std::move(thought), constraint_ != nullptr, vocab),
      words_((static_cast<size_t>(vocab) + 63) / 64) {
  if (constraint_) state_ = constraint_->start();
}

std::span<const uint64_t> ConstraintCursor::allowed(const SamplingParams& params) {
  if (!thought_.is_over()) return thought_.allowed(params);
  if (!constraint_ || error_) return allowed_;
  const auto lock = constraint_->lock();
  try {
    tally_.add(*constraint_, state_);
    const auto mask = constraint_->allowed(state_);
    allowed_.assign(words_, 0);
    std::copy_n(mask.begin(), std::min(mask.size(), words_), allowed_.begin());
  } catch (const Error&) {
    error_ = kGrammarTooLarge;
    return allowed_;
  }
  for (const int32_t token : params.stop_token_ids) {
    const uint64_t bit = uint64_t{1} << (token % 64);
    uint64_t& word = allowed_[static_cast<size_t>(token) / 64];
    word = constraint_->accepts(state_) ? word | bit : word & ~bit;
  }
  return allowed_;
}

void ConstraintCursor::advance(int32_t token, const SamplingParams& params) {
  if (is_stop(params, token)) return;
  if (!constraint_ || !thought_.is_over()) return thought_.advance(token);
  const auto lock = constraint_->lock();
  try {
    state_ = constraint_->next(state_, token);
  } catch (const Error&) {
    error_ = kGrammarTooLarge;
    return;
  }
  CHECK(state_ != Constraint::kDead, "only allowed tokens are sampled");
}

bool ConstraintCursor::goes_on() const {
  if (!constraint_ || !thought_.is_over()) return true;
  const auto lock = constraint_->lock();
  return constraint_->goes_on(state_);
}

}  // namespace invar
