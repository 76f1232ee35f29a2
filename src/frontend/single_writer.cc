#include "frontend/single_writer.h"

#include <utility>

namespace invar::openai {

SingleWriter::SingleWriter(Head head, const Request& request, int64_t prompt_tokens,
                           const Tokenizer& tokenizer)
    : head_(std::move(head)),
      request_(request),
      tokenizer_(tokenizer),
      builder_(tokenizer, request.base) {
  builder_.answer.prompt_tokens.edit().resize(static_cast<size_t>(prompt_tokens));
}

void SingleWriter::push(size_t, const TokenOutput& output, std::string& out) {
  if (ended_) return;
  const std::string piece = builder_.push(output);
  const FinishReason finish = builder_.answer.finish;
  if (finish == FinishReason::failed) return fail(failure_of(builder_.answer.error), out);
  show(output, piece, out);
  ended_ = finish != FinishReason::none;
}

void SingleWriter::fail(const Failure& failure, std::string& out) {
  if (ended_) return;
  show_error(failure, out);
  ended_ = true;
}

std::span<const TokenLogprobs> SingleWriter::new_logprobs() {
  const std::vector<TokenLogprobs>& all = builder_.answer.logprobs;
  return std::span(all).subspan(std::exchange(shown_logprobs_, all.size()));
}

}  // namespace invar::openai
