#include "frontend/answer_builder.h"

#include <algorithm>

#include "base/ends.h"
#include "frontend/receipt.h"

namespace invar {

void TextAnswer::change_weights(const std::string& before, const std::string& now, size_t first) {
  if (weights.empty()) weights.push_back({before, 0});
  if (weights.back().first == first) weights.pop_back();
  weights.push_back({now, first});
}

// The special token that ends an answer is a stop, as a stop string is one: not text unless asked
// for. Marks of thoughts and calls are read even where they are special.
std::string AnswerBuilder::decode(const TokenOutput& output) {
  std::string decoded;
  if (!output.has_token()) {
    decoder_.finish(decoded);
    return decoded;
  }
  const bool is_special = tokenizer_.is_special(output.token);
  const bool ends = output.finish == FinishReason::stop && is_special;
  if (is_special && !ends && std::ranges::binary_search(shown_special_, output.token))
    decoded = tokenizer_.token_bytes(output.token);
  else if (!ends || include_stop_)
    decoder_.push(output.token, decoded);
  if (output.finish != FinishReason::none) decoder_.finish(decoded);
  return decoded;
}

std::string AnswerBuilder::take_thoughts(std::string decoded, const TokenOutput& output) {
  new_thought_.clear();
  if (!thoughts_) return decoded;
  std::string text, thought;
  const bool is_last = output.finish != FinishReason::none;
  const bool was_within = thoughts_->is_within();
  thoughts_->push(decoded, thought, text);
  if (output.has_token() && (was_within || thoughts_->is_within())) ++answer.thought_tokens;
  if (is_last) thoughts_->finish(thought, text);
  if (stops_of_thoughts_.push(thought, new_thought_, stops_count()))
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
  if (output.has_token()) take_token(output);
  const std::string text = take_thoughts(decode(output), output);
  if (!answer.stop.empty()) return piece;  // within a thought
  if (stops_.push(text, piece, stops_count()))
    answer.finish = FinishReason::stop, answer.stop = stops_.found();
  else if (output.finish != FinishReason::none)
    stops_.finish(piece);
  answer.text += piece;
  return piece;
}

void AnswerBuilder::take_token(const TokenOutput& output) {
  answer.tokens.push_back(output.token);
  answer.logits_hash = output.logits_hash;
  if (!output.routed_experts.empty()) answer.routed_experts = output.routed_experts;
  if (answer.tokens.size() % kReceiptLink == 0)
    answer.hash_checkpoints.push_back(output.logits_hash);
  if (output.logprobs) answer.logprobs.push_back(*output.logprobs);
}

}  // namespace invar
