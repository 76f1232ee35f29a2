// The tool_choice of OpenAI's clients, and of others that have their words for it.
#pragma once

#include <optional>

#include "base/json.h"

namespace invar::openai {

// "none", "auto", "required" or a function, as a chat completion has it. The tools that
// {"type": "allowed_tools"} names take the place of `chat`'s. Throws UsageError.
json::Value plain_choice(const json::Value& given, json::Value& chat);

// The body of a chat completion whose tool_choice has another form; nothing where it is plain.
std::optional<json::Value> with_plain_choice(const json::Value& body);

}  // namespace invar::openai
