// Computes what a receipt says again: prompt and answer as one prompt, whose chunks have the bits
// that decoding has, and each token sampled with the request's own noise.
#pragma once

#include <string>

#include "engine/model.h"
#include "frontend/receipt.h"
#include "tokenizer/tokenizer.h"

namespace invar {

struct Verdict {
  bool is_confirmed = false;
  std::string sentence;  // what differs first; or what was confirmed
  int64_t tokens = 0;    // of the answer that were computed again
  double seconds = 0;    // in which, without the loading of the model
};

// What receipts say of the model that the options name: of a server whose template is in
// `template_file` where one is named, and whose arithmetic is `identity`.
ReceiptModel receipt_model(const ModelOptions& options, const std::string& identity,
                           const Digest& weights, const std::string& template_file = {});

// `known`: of the model. `prefix` 0: the whole answer, else its first so many tokens. Says nothing
// of the signature. Throws Error when the receipt asks for what the model cannot compute.
Verdict verify(const Receipt& receipt, const ReceiptModel& known, Model& model,
               const Tokenizer& tokenizer, int64_t prefix = 0);

}  // namespace invar
