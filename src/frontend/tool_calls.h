// Calls of tools in what a model writes.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace invar {

// How a model writes a call.
enum class ToolFormat {
  none,         // it writes none
  tagged,       // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, as Hermes and Qwen do
  bare,         // {"name": ..., "parameters": {...}} as the whole answer, as Llama 3 does
  arguments,    // the answer is held to the arguments of one tool
  object,       // the answer is held to a call of any of the tools, written as in `bare`
  qwen3_coder,  // <tool_call><function=NAME><parameter=NAME>VALUE</parameter></function></tool_call>
  mistral,      // [TOOL_CALLS][{"name": ..., "arguments": {...}}] or [TOOL_CALLS]NAME[ARGS]{...}
  deepseek_v3,  // NAME, a separator and JSON between marks of their own
  gpt_oss,      // a message to functions.NAME (ThoughtReader)
  pythonic,     // [name(key=value, ...), ...] as the whole answer, as Llama 4 does
};

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON; of a call that was cut, its beginning
};

// A format that answers have of themselves.
struct ToolStyle {
  ToolFormat format;
  std::string_view name;  // of --tool-call-parser
  // Marks that are special tokens and have to be read all the same.
  std::vector<std::string_view> marks;
};
std::span<const ToolStyle> tool_styles();
// By the name of --tool-call-parser. Throws UsageError.
ToolFormat tool_format_named(std::string_view name);
std::string_view name_of(ToolFormat format);
// The format that a chat template asks for, from its text.
ToolFormat tool_format_of(std::string_view chat_template);
std::span<const std::string_view> marks_of(ToolFormat format);

// The forms (ConstraintCompiler) of an answer that must be a call: of the tool `name`, or of one of
// the tools where it is empty. `tools` is what a request gives. Throws UsageError when there is no
// such tool.
json::Value grammar_of_call(const json::Value& tools, const std::string& name);

// The form of an answer that may have calls among its text, as `format` (tagged or bare) writes
// them: arguments are held to the schemas of the tools that say "strict" and are any objects of the
// others. `once`: the first call ends the answer. Throws UsageError where a tool is none.
json::Value grammar_of_calls(const json::Value& tools, ToolFormat format, bool once);
bool has_strict(const json::Value& tools);
// What stands before a call.
std::string_view opening_mark(ToolFormat format);

// What stands at the front of a place where calls may be. `bytes` 0: more is needed.
struct CallPiece {
  size_t bytes = 0;
  bool is_text = false;  // it looked like a call and is none
  bool ends = false;     // behind it no call comes without a new opening mark
};
// Reads the front of `text`, which stands behind an opening mark of the format, and appends the
// call that it is, if it is one. `is_last`: nothing follows. `tools`: of the request.
CallPiece read_call_piece(ToolFormat format, std::string_view text, bool is_last,
                          const json::Value& tools, std::vector<ToolCall>& calls);
// What stands of a call that was cut at the end of `text`, as far as its name is whole. JSON that
// began a string or an object stays so.
void read_cut_call(ToolFormat format, std::string_view text, const json::Value& tools,
                   std::vector<ToolCall>& calls);

// Parts text that arrives in pieces into calls and what is said beside them. What looks like a call
// and is none stays text.
class ToolCallReader {
 public:
  // `name` is the tool's where the answer is its arguments; `tools` those of the request, which say
  // what values are where the format does not. They outlive the reader.
  explicit ToolCallReader(ToolFormat format, std::string name = {},
                          const json::Value* tools = nullptr)
      : format_(format), name_(std::move(name)), tools_(tools) {}

  void push(std::string_view piece, std::string& content, std::vector<ToolCall>& calls);
  // `is_cut`: the answer is longer than it may be, so that its last call may not be whole.
  void finish(std::string& content, std::vector<ToolCall>& calls, bool is_cut = false);
  // Whether text came before the first call, however the pieces were cut.
  bool text_came_first() const { return text_first_; }

 private:
  bool is_whole_answer() const;  // a call is all that the answer has
  bool begins_like_a_call() const;
  void read_marked(bool is_last, std::string& content, std::vector<ToolCall>& calls);
  void say(std::string_view text, std::string& content);
  const json::Value& tools() const { return tools_ ? *tools_ : no_tools_; }

  ToolFormat format_;
  std::string name_;
  const json::Value* tools_;
  json::Value no_tools_;
  std::string held_;
  std::string mark_;  // behind which no call has come yet
  bool in_call_ = false, called_ = false, text_first_ = false;
};

}  // namespace invar
