// The prompts of a request's body. Each function throws UsageError with the field's name.
#pragma once

#include "frontend/body_fields.h"
#include "frontend/openai.h"

namespace invar::openai {

// A conversation, or a prompt of which the end is kept, has so many bytes: more is not looked at.
size_t most_text(const Context& context);
// "prompt": a text, token ids, or a list of either.
void read_prompts(const BodyFields& fields, const Context& context, Request& request);
// "messages" as the chat template has them.
void read_conversation(const BodyFields& fields, const Context& context, Request& request);
// The last so many tokens of the prompt; -1: as many as fit.
int32_t read_truncation(const BodyFields& fields);
// {"type": "content", "content": a text or parts of text}
void read_prediction(const BodyFields& fields, const Context& context, Request& request);

}  // namespace invar::openai
