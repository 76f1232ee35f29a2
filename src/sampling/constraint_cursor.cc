#include "sampling/constraint_cursor.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace invar {

ConstraintCursor::ConstraintCursor(std::shared_ptr<Constraint> constraint,
                                   std::shared_ptr<const ThoughtRules> thought, int32_t vocab)
    : constraint_(std::move(constraint)),
      thought_(std::move(thought), constraint_ != nullptr, vocab),
      words_((static_cast<size_t>(vocab) + 63) / 64) {
  if (!constraint_) return;
  state_ = constraint_->start();
  unique_ = constraint_->unique_items();
}

std::span<const uint64_t> ConstraintCursor::allowed(const SamplingParams& params) {
  if (!thought_.is_over()) return thought_.allowed(params);
  if (!constraint_ || error_ || is_found_) return allowed_;
  const auto lock = constraint_->lock();
  try {
    const Constraint::Mask& mask = constraint_->mask(state_, work_);
    tally_.add(mask);
    allowed_.assign(words_, 0);
    std::copy_n(mask.tokens.begin(), std::min(mask.tokens.size(), words_), allowed_.begin());
    if (unique_) exclude_repeats();
  } catch (const Error&) {
    error_ = kFormTooLarge;
    return allowed_;
  }
  for (const int32_t token : params.stop_token_ids) {
    const uint64_t bit = uint64_t{1} << (token % 64);
    uint64_t& word = allowed_[static_cast<size_t>(token) / 64];
    word = state_.accepts ? word | bit : word & ~bit;
  }
  is_found_ = true;
  return allowed_;
}

// Takes away the tokens that would end an item of a unique array as one that it has already, unless
// there are no others.
void ConstraintCursor::exclude_repeats() {
  const TokenTable& tokens = constraint_->tokens();
  std::vector<uint64_t> others = allowed_;
  const auto exclude = [&](std::string_view bytes) {
    for (const TokenTable::Entry& entry : tokens.beginning_with(bytes))
      if (const auto word = static_cast<size_t>(entry.token) / 64; word < others.size())
        others[word] &= ~(uint64_t{1} << (entry.token % 64));
  };
  unique_->for_repeats([&](std::string_view rest, bool needs_end) {
    if (rest.size() > tokens.longest()) return;
    if (!needs_end) return exclude(rest);
    for (const char end : {',', ']', ' ', '\n', '\r', '\t'}) exclude(std::string(rest) + end);
  });
  if (std::ranges::any_of(others, [](uint64_t word) { return word != 0; }))
    allowed_ = std::move(others);
}

void ConstraintCursor::advance(int32_t token, const SamplingParams& params) {
  if (is_stop(params, token)) return;
  if (!constraint_ || !thought_.is_over()) return thought_.advance(token);
  const auto lock = constraint_->lock();
  is_found_ = false;
  const int64_t before = work_;
  try {
    state_ = constraint_->next(state_, token, work_);
    if (unique_) {
      unique_->read(constraint_->text_of(token));
      unique_->for_repeats([&](std::string_view, bool) { ++work_; });
    }
    tally_.add_token(work_ - before);
  } catch (const Error&) {
    error_ = kFormTooLarge;
    return;
  }
  CHECK(!state_.is_dead(), "only allowed tokens are sampled");
  if (constraint_->checks_answers()) text_ += constraint_->text_of(token);
}

const char* ConstraintCursor::fault_at_end() const {
  return constraint_ ? constraint_->fault_of(text_) : nullptr;
}

bool ConstraintCursor::goes_on() const {
  if (!constraint_ || !thought_.is_over()) return true;
  return state_.goes_on;
}

}  // namespace invar
