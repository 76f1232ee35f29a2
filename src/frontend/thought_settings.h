// A request's settings of thoughts, in the words of OpenAI, Anthropic, Qwen and vLLM, as the chat
// template's switch and a budget.
#pragma once

#include <optional>
#include <string>

#include "frontend/body_fields.h"
#include "frontend/chat_template.h"
#include "sampling/thought.h"

namespace invar {

struct ThoughtSettings {
  std::optional<bool> thinks;  // nothing: as the template does by default
  int32_t budget = -1;         // ThoughtRules::budget
  std::string effort;          // low, medium or high, for templates that read it
  bool stops = false;          // ThoughtView::stops
};

// Reads reasoning_effort, thinking, enable_thinking, thinking_token_budget and stop_in_reasoning.
// `format` is the model's; without one only settings that ask for no thought are taken. `chat` may
// be null. Throws UsageError.
ThoughtSettings read_thought_settings(const BodyFields& fields, ThoughtFormat format,
                                      const ChatTemplate* chat);

// Throws UsageError where one of these fields is given. `why`: there are no thoughts.
void refuse_thoughts(const BodyFields& fields, std::string_view why);

// As variables of the template; those that it has already stay.
void set_variables(const ThoughtSettings& settings, json::Object& variables);

}  // namespace invar
