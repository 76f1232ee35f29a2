#include "frontend/answer_builder.h"

#include "frontend/receipt.h"

namespace invar {

std::string AnswerBuilder::push(const TokenOutput& output) {
  answer.finish = output.finish;
  if (output.error) answer.error = output.error;
  std::string piece;
  if (output.finish == FinishReason::failed) return piece;
  answer.tokens.push_back(output.token);
  answer.logits_hash = output.logits_hash;
  if (answer.tokens.size() % kReceiptLink == 0) answer.marks.push_back(output.logits_hash);
  if (output.logprobs) answer.logprobs.push_back(*output.logprobs);
  std::string decoded;
  // The special token that ends an answer is a stop, as a stop string is one: not text unless asked
  // for.
  const bool ends = output.finish == FinishReason::stop && tokenizer_.is_special(output.token);
  if (!ends || include_stop_) decoder_.push(output.token, decoded);
  if (output.finish != FinishReason::none) decoder_.finish(decoded);
  if (stops_.push(decoded, piece))
    answer.finish = FinishReason::stop, answer.stop = stops_.found();
  else if (output.finish != FinishReason::none)
    stops_.finish(piece);
  answer.text += piece;
  return piece;
}

}  // namespace invar
