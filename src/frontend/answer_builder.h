// An answer as it grows: tokens in, text out.
#pragma once

#include <string>
#include <vector>

#include "base/shared.h"
#include "engine/request.h"
#include "sampling/stop_strings.h"
#include "tokenizer/tokenizer.h"

namespace invar {

// A finished answer.
struct TextAnswer {
  std::string text;
  Shared<std::vector<int32_t>> prompt_tokens;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  FinishReason finish = FinishReason::none;
  std::string stop;  // the stop string that ended it, or empty
  Digest logits_hash{};
  std::vector<Digest> marks;  // the logits hash behind every kReceiptLink tokens
  std::string error;          // of a failed one: a sentence
};

class AnswerBuilder {
 public:
  // Of the request only how its answer becomes text is read.
  AnswerBuilder(const Tokenizer& tokenizer, const Request& request)
      : tokenizer_(tokenizer),
        decoder_(tokenizer, {.skip_special = request.skip_special, .continuation = true}),
        stops_(request.stop, request.include_stop),
        include_stop_(request.include_stop) {}

  // Takes the next token and returns the text that can be shown now: complete characters that are
  // not the beginning of a stop string. The answer is over when its `finish` is not none: with a
  // stop string that may be before the engine says so.
  std::string push(const TokenOutput& output);

  TextAnswer answer;

 private:
  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  StopStrings stops_;
  bool include_stop_;
};

}  // namespace invar
