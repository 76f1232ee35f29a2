// Log-probabilities of a whole answer, which may be long: as lists that are written later.
#pragma once

#include <memory>
#include <vector>

#include "frontend/openai_parts.h"

namespace invar::openai {

// The same values as in openai_parts.h; the lists share what they show.
using SharedLogprobs = std::shared_ptr<const std::vector<TokenLogprobs>>;
json::Value late_prompt_logprobs(const Tokenizer& tokenizer, SharedLogprobs all, LateLists& late);
json::Value late_logprobs(Endpoint endpoint, const TokenNames& names, const SharedLogprobs& all,
                          LateLists& late);

}  // namespace invar::openai
