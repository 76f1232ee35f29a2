// The parts of a request that are kept to make its answer again, where its prompts are known as
// tokens.
#pragma once

#include "frontend/openai.h"

namespace invar::openai {

// The body without what its answer does not depend on: prompts (unless the answer repeats them),
// fields that are not known or only describe the request.
json::Value kept_body(const json::Value& body, const Request& request);

// The items of a response's input that a later response reads.
json::Array kept_items(const json::Value& body);

}  // namespace invar::openai
