// The sampling parameters of a request's body: OpenAI's, and those that vLLM adds.
#pragma once

#include "frontend/body_fields.h"
#include "frontend/openai.h"

namespace invar::openai {

// What the body leaves open stays as it is. Throws UsageError with the field's name.
void read_sampling(const BodyFields& fields, const Context& context, SamplingParams& params);

}  // namespace invar::openai
