// One form of a conversation, whatever client wrote it and whatever template it is for.
//
// Clients send null where others leave out, arguments as texts that may be cut, system messages in
// the middle, and answers of other servers; a template takes what the model was trained with. The
// form is a function of the conversation and the template's traits alone, and normalizing it again
// changes nothing. docs/server.md says what is done.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "frontend/template_traits.h"

namespace invar {

struct NormalConversation {
  json::Array messages;
  json::Value tools;  // an array with one at least, or null
  // Changes that the template sees; a sentence for each kind.
  std::vector<std::string> changes;
};

// Throws UsageError for what is no conversation.
NormalConversation normal_form(const json::Value& messages, const json::Value& tools,
                               const TemplateTraits& traits);

}  // namespace invar
