// Fields of other servers' requests that would change an answer if they were understood. A client
// that sends one must hear of it: an answer without it would be another one.
#pragma once

#include <span>
#include <string_view>

#include "base/json.h"

namespace invar::openai {

struct ForeignField {
  std::string_view name;
  // JSON of the values that ask for nothing, separated by '|'; null always does.
  std::string_view neutral;
  std::string_view instead = "";  // what to ask for here
};

// Fields of completions and chat completions.
std::span<const ForeignField> foreign_fields();

const ForeignField* find_field(std::span<const ForeignField> fields, std::string_view name);
// Throws UsageError, naming the field and what it may be, when `body`, an object, has one of
// `fields` with a value that asks for something.
void refuse_fields(const json::Value& body, std::span<const ForeignField> fields);

}  // namespace invar::openai
