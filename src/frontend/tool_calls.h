// Calls of tools in what a model writes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace invar {

// How a model writes a call.
enum class ToolFormat {
  none,       // it writes none
  tagged,     // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as Hermes and Qwen do
  bare,       // {"name": ..., "parameters": {...}} as the whole answer, as Llama 3 does
  arguments,  // the answer is held to the arguments of one tool
  object,     // the answer is held to a call of any of the tools, written as in `bare`
};

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON
};

// The format that a chat template asks for, from its text.
ToolFormat tool_format_of(std::string_view chat_template);

// The forms (ConstraintCompiler) of an answer that must be a call: of the tool `name`, or of one of
// the tools where it is empty. `tools` is what a request gives. Throws UsageError when there is no
// such tool.
json::Value form_of_call(const json::Value& tools, const std::string& name);

// The form of an answer that may have calls among its text, as `format` (tagged or bare) writes
// them: arguments are held to the schemas of the tools that say "strict" and are any objects of the
// others. `once`: the first call ends the answer. Throws UsageError where a tool is none.
json::Value form_of_calls(const json::Value& tools, ToolFormat format, bool once);
bool has_strict(const json::Value& tools);
// What stands before a call.
std::string_view opening_mark(ToolFormat format);

// Parts text that arrives in pieces into calls and what is said beside them. What looks like a call
// and is none stays text.
class ToolCallReader {
 public:
  // `name` is the tool's where the answer is its arguments.
  explicit ToolCallReader(ToolFormat format, std::string name = {})
      : format_(format), name_(std::move(name)) {}

  void push(std::string_view piece, std::string& content, std::vector<ToolCall>& calls);
  void finish(std::string& content, std::vector<ToolCall>& calls);
  // Whether text came before the first call, however the pieces were cut.
  bool text_came_first() const { return text_first_; }

 private:
  void read_tagged(std::string& content, std::vector<ToolCall>& calls);

  ToolFormat format_;
  std::string name_;
  std::string held_;
  bool in_call_ = false, called_ = false, text_first_ = false;
};

}  // namespace invar
