// The input of a response: items of messages, thoughts, and calls with their outputs.
#pragma once

#include <string>

#include "base/json.h"
#include "frontend/request_warnings.h"
#include "frontend/thought_seal.h"

namespace invar::openai {

// The member as a text; empty where it is none.
std::string text_member(const json::Value& object, const char* name);

// The input of a body as messages of a chat completion, behind its instructions and the items of
// `earlier`, which may be null, as may the seal. Throws UsageError.
json::Array messages_of(const json::Value& body, const json::Array* earlier,
                        const ThoughtSeal* seal, RequestWarnings& warnings);

}  // namespace invar::openai
