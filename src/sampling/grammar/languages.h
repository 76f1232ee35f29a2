// Languages that answers can be held to: a regular expression, one of some texts, JSON of a schema.
//
// Each throws UsageError, one sentence, for what is not understood: nothing is ignored that would
// change the language.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "sampling/grammar/nfa.h"

namespace invar::grammar {

// The whole answer matches: literals, ., [classes], \d \w \s and their negations (of ASCII),
// groups,
// |, * + ? {m,n}; ^ and $ only at the ends. No look-around, no back references.
Nfa regex_language(std::string_view pattern);

// Appends a regular expression whose characters can stand in a JSON string as they are.
Nfa::State add_json_string_pattern(Nfa& nfa, Nfa::State from, std::string_view pattern);

Nfa choice_language(std::span<const std::string> texts);

// JSON of a schema: type, properties (in their order) with required, additionalProperties (false,
// or a schema where there are no properties), items with minItems and maxItems, minLength,
// maxLength, pattern, enum, const, anyOf, oneOf, $ref without recursion. Properties that the schema
// does not name are not written. Between tokens there may be a space, or a newline and up to 16
// spaces.
Nfa json_schema_language(const json::Value& schema);

// Any JSON object, nested up to six levels.
Nfa json_object_language();

}  // namespace invar::grammar
