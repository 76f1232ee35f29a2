#include "frontend/answer_builder.h"

#include <algorithm>

#include "base/ends.h"
#include "frontend/receipt.h"

namespace invar {

// The special token that ends an answer is a stop, as a stop string is one: not text unless asked
// for. Marks of thoughts and calls are read even where they are special.
std::string AnswerBuilder::decode(const TokenOutput& output) {
  std::string decoded;
  const bool is_special = tokenizer_.is_special(output.token);
  const bool ends = output.finish == FinishReason::stop && is_special;
  if (is_special && !ends && std::ranges::binary_search(shown_special_, output.token))
    decoded = tokenizer_.token_bytes(output.token);
  else if (!ends || include_stop_)
    decoder_.push(output.token, decoded);
  if (output.finish != FinishReason::none) decoder_.finish(decoded);
  return decoded;
}

std::string AnswerBuilder::take_thoughts(std::string decoded, bool is_last) {
  new_thought_.clear();
  if (!thoughts_) return decoded;
  std::string text, thought;
  const bool was_within = thoughts_->is_within();
  thoughts_->push(decoded, thought, text);
  if (was_within || thoughts_->is_within()) ++answer.thought_tokens;
  if (is_last) thoughts_->finish(thought, text);
  if (stops_of_thoughts_.push(thought, new_thought_))
    answer.finish = FinishReason::stop, answer.stop = stops_of_thoughts_.found();
  else if (is_last || !thoughts_->is_within())
    stops_of_thoughts_.finish(new_thought_);
  if (!new_thought_.empty() &&
      (answer.turns.empty() || last_of(answer.turns).text != answer.text.size()))
    answer.turns.push_back({.text = answer.text.size(), .thought = answer.thought.size()});
  answer.thought += new_thought_;
  return text;
}

std::string AnswerBuilder::push(const TokenOutput& output) {
  answer.finish = output.finish;
  if (output.error) answer.error = output.error;
  std::string piece;
  new_thought_.clear();
  if (output.finish == FinishReason::failed) return piece;
  answer.tokens.push_back(output.token);
  answer.logits_hash = output.logits_hash;
  if (!output.routed_experts.empty()) answer.routed_experts = output.routed_experts;
  if (answer.tokens.size() % kReceiptLink == 0)
    answer.hash_checkpoints.push_back(output.logits_hash);
  if (output.logprobs) answer.logprobs.push_back(*output.logprobs);
  const bool is_last = output.finish != FinishReason::none;
  const std::string text = take_thoughts(decode(output), is_last);
  if (!answer.stop.empty()) return piece;  // within a thought
  if (stops_.push(text, piece))
    answer.finish = FinishReason::stop, answer.stop = stops_.found();
  else if (is_last)
    stops_.finish(piece);
  answer.text += piece;
  return piece;
}

}  // namespace invar
