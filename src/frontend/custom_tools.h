// OpenAI's tools of type "custom": what they are called with is a text, not JSON. They are
// functions of one text, "input".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace invar::openai {

// The function that a custom tool is, whose name, description and format `custom` has: a text, or
// one that follows a regular expression or a Lark grammar. Throws UsageError.
json::Value function_of_custom(const json::Value& custom);

// The body of a chat completion whose custom tools, and their calls in its messages, are functions'
// and whose `names` are added; nothing where it has none. Throws UsageError with the field's name.
std::optional<json::Value> with_plain_tools(const json::Value& body,
                                            std::vector<std::string>& names);

// The text in the arguments of such a call, as they come. However they are cut, it is the same.
class CustomInput {
 public:
  // Returns what a piece of the arguments adds to the text.
  std::string push(std::string_view arguments);
  // Returns what is still to be said when they have ended.
  std::string finish() const;

 private:
  enum class At { before, within, behind };
  std::string read_text();

  At at_ = At::before;
  std::string all_, held_;
  bool began_ = false;
};

// The whole text, or what there is of it.
std::string custom_input(std::string_view arguments);

}  // namespace invar::openai
