// Computes what a receipt says again: prompt and answer as one prompt, whose chunks have the bits
// that decoding has, and each token sampled with the request's own noise.
#pragma once

#include <optional>
#include <string>

#include "engine/model.h"
#include "frontend/answer_builder.h"
#include "frontend/receipt.h"
#include "tokenizer/tokenizer.h"

namespace invar {

struct Verdict {
  bool is_confirmed = false;
  std::string sentence;  // what differs first; or what was confirmed
  int64_t tokens = 0;    // of the answer that were computed again
  double seconds = 0;    // in which, without the loading of the model
  TextAnswer answer;     // as it was computed again; whole if it was confirmed without a prefix
};

struct VerifyOptions {
  int64_t prefix = 0;  // 0: the whole answer, else its first so many tokens
  std::optional<int32_t> logprobs, prompt_logprobs;  // that Verdict::answer is to have
  LogprobsMode logprobs_mode = LogprobsMode::raw_logprobs;
  std::shared_ptr<const RequestAdapter> adapter = {};  // that the receipt's request had
};

// The receipt's part on the texts beside the weights, tokenizer and template; the template is in
// `template_file` where one is named. The rest is empty.
ReceiptModel receipt_texts(const ModelOptions& options, const std::string& template_file = {});
// The receipt's part on the whole model, with its sampling defaults. Reads all
// weights.
ReceiptModel receipt_model(Model& model, const std::string& template_file = {});

// The first member of the two that differs, if any.
std::optional<std::string> model_difference(const ReceiptModel& said, const ReceiptModel& known);

// `known`: of the model without an adapter. Says nothing of the signature. Throws Error when the
// receipt asks for what the model cannot compute.
Verdict verify(const Receipt& receipt, const ReceiptModel& known, Model& model,
               const Tokenizer& tokenizer, const VerifyOptions& options = {});

}  // namespace invar
