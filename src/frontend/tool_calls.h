// How models write calls of tools.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "frontend/front_reader.h"

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
  // Parameters one after another between tags (TagStyle):
  glm45,
  minimax_m2,
  minimax_m3,
  deepseek_v32,
  deepseek_v4,
  seed_oss,
  hy_v3,
  kimi_k2,  // functions.NAME:NUMBER and JSON between marks of their own
  gemma4,   // <|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>, texts between marks
  lfm2,     // <|tool_call_start|>[name(key=value, ...), ...]<|tool_call_end|>
  olmo3,    // the same between <function_calls> and </function_calls>, a call on each line
  // Objects of JSON, in a list or one behind another:
  hunyuan_a13b,   // <tool_calls>...</tool_calls>
  nemotron_json,  // <TOOLCALL>...</TOOLCALL>
  granite,        // <|tool_call|>[...]
  functionary,    // <function=NAME>{...}</function>
  cohere,         // <|START_ACTION|>[{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}]
  apertus,        // <|tools_prefix|>[{NAME: {...}}]<|tools_suffix|>
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

// The form of an answer that may have calls among its text, as `format` (of has_grammar) writes
// them: arguments are held to the schemas of the tools that say "strict" and are any objects of the
// others, but for pythonic, where all are held to. `once`: the first call ends the answer.
// `answer`: null, or the schema of what an answer without calls is; false: there is none. Throws
// UsageError where a tool is none, or its schema asks for what the format cannot hold to.
// `has_args`: whether [ARGS] is a token, with which newer models of Mistral's write calls.
json::Value grammar_of_calls(const json::Value& tools, ToolFormat format, bool once,
                             const json::Value& answer = {}, bool has_args = false);
bool has_grammar(ToolFormat format);
// Whether an answer that must be a call is one as the format has it. Else it is JSON alone.
bool keeps_format(ToolFormat format);
// Those of the tools that have the name, or all where it is empty, each of them strict.
json::Value strict_tools(const json::Value& tools, const std::string& name);
bool has_strict(const json::Value& tools);
// The mark before a call, and the one behind it, or behind several; nothing where there is none.
std::string_view opening_mark(ToolFormat format);
std::string_view closing_mark(ToolFormat format);
// The beginning of a call whose opening mark the model has left out; or nothing.
std::string_view unwrapped_mark(ToolFormat format);

// The front of a place where calls may be.
struct CallHead {
  enum class Kind {
    more,   // nobody can say until more has come
    call,   // a call whose arguments begin behind it
    whole,  // a call with its arguments
    skip,   // what belongs to no call
    text,   // it looked like a call and is none
  };
  Kind kind = Kind::more;
  size_t bytes = 0;
  std::string name = {}, arguments = {};  // of the call
  bool ends = false;                      // behind it no call comes without a new opening mark
};

// Reads the front of `text`, which stands behind an opening mark of the format. `tools`: of the
// request. `first`: no call has come yet. `search` is of this place alone: `text` goes on with each
// call.
CallHead read_call_head(ToolFormat format, std::string_view text, const json::Value& tools,
                        bool first, FrontSearch& search);

// Reads the arguments of the tool `name` behind the head of its call. `tools` outlives it.
std::unique_ptr<ArgumentReader> arguments_of(ToolFormat format, const std::string& name,
                                             const json::Value& tools);

// The text between a call's arguments and the place of the next call.
struct CallTail {
  std::string_view mark = {};  // up to which nothing is text
  bool closes = false;         // the bracket that the call began with
  bool ends = false;           // as CallHead's
};
CallTail tail_of(ToolFormat format);

// The calls that `text` is, where no head says so and nothing follows.
void read_last_calls(ToolFormat format, std::string_view text, std::vector<ToolCall>& calls);
// Reads a call that was cut at the end of `text`, as far as its name is whole.
void read_cut_call(ToolFormat format, std::string_view text, const json::Value& tools,
                   std::vector<ToolCall>& calls);

}  // namespace invar
