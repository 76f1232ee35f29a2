// Languages that answers can be held to: a regular expression, one of some texts, a grammar, JSON
// of a schema.
//
// Each throws UsageError, one sentence, for what is not understood: nothing is ignored that would
// change the language.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "sampling/grammar/language.h"

namespace invar::grammar {

// The whole answer matches: literals, ., [classes], \d \w \s and their negations (of ASCII),
// groups, |, * + ? {m,n}, (?i) and (?s); ^, $ and look-aheads at the outermost level. No
// look-behind, no back references.
Language regex_language(std::string_view pattern);

Language choice_language(std::span<const std::string> texts);

// GBNF, as llama.cpp and vLLM write it; the answer is the rule "root". No rule may begin with
// itself, and they nest up to Language::kMaxDepth deep, but for what a rule ends with.
Language gbnf_language(std::string_view grammar);
// Whether a line begins with a name and ::=, as its rules do and nothing of Lark's does.
bool is_gbnf(std::string_view grammar);

// Lark's grammars: rules, terminals, texts, regular expressions, ranges, ( ) [ ] | * + ? ~, %ignore
// and %import of "common"; the answer is the rule "start". A rule may begin with itself. Terminals
// stand together in every way: no lexer takes the longest. No look-arounds, templates, priorities
// of terminals.
Language lark_language(std::string_view grammar);

// The text between two tokens of JSON, as a regular expression: nothing, since every space costs a
// token; or a space, or a newline and up to 16 spaces.
inline constexpr std::string_view kCompact = "", kAnyLayout = "( |\n {0,16})?";

// JSON of a schema. docs/requests.md says which words are understood. Properties are written in
// their order.
Language json_schema_language(const json::Value& schema, std::string_view whitespace = kCompact);

// How JSON is spelled: as itself, or as Gemma 4 writes arguments, where texts stand between marks
// as they are, and names are bare.
enum class Spelling { json, marked };
inline constexpr std::string_view kTextMark = "<|\"|>";

// The same within another language, which it need not outlive.
Language::Expr add_json_schema(Language& language, const json::Value& schema,
                               std::string_view whitespace, Spelling spelling = Spelling::json);

// Any JSON object.
Language json_object_language(std::string_view whitespace = kCompact);

// The marks around a call of a tool, as in <tool_call>{...}</tool_call>.
struct CallMarks {
  std::string open, close;
  bool has_several = false;  // calls between them
};
// Text among which calls of tools, JSON of `schema`, may stand between the marks; `once`: the first
// call ends it. Wherever the text has the opening mark, a call follows. Where `answer`, a schema,
// is not null, there are calls and no text, or JSON of it. Throws UsageError for a mark of one
// byte.
Language marked_calls_language(const json::Value& schema, const CallMarks& marks, bool once,
                               const json::Value& answer = {});

// A parameter of a call that is not written as JSON as a whole.
struct CallParameter {
  std::string name;
  bool is_required = false;
  bool is_text = false;            // any text as it is
  std::vector<std::string> texts;  // or one of these as it is; else JSON of
  json::Value schema;
};
struct CallForm {
  std::string name;
  bool is_strict = true;  // else its parameters are any, where the format can tell their end
  std::vector<CallParameter> parameters;  // in the order in which they are written
};
// The words of calls whose parameters stand one after another between tags: before a call's name
// and behind it, and behind the call; around a parameter's name, and around its value.
struct TagWords {
  std::string call, name_end, call_end;
  std::string key, key_end, text_key_end;  // the last one: where the value is a text
  std::string value, value_end;
  bool names_end = false;  // the parameter's name and > stand behind `value_end`
  bool has_lines = false;  // values stand on lines of their own; else line breaks may be left out
  std::string bare;        // what begins a call without an opening mark; or nothing
};
// The same of such calls.
Language tag_calls_language(std::span<const CallForm> calls, const TagWords& words,
                            const CallMarks& marks, bool once, const json::Value& answer);
// A call as a name and JSON of its arguments among words.
struct NamedCall {
  std::string name;
  json::Value arguments;  // their schema
};
struct CallWords {
  std::string before, between, after;  // the name; the name and the arguments; the arguments
  bool has_number = false;             // a colon and a number stand behind the name
};
// The same of such calls, each in one of the ways.
Language named_calls_language(std::span<const NamedCall> calls, std::span<const CallWords> ways,
                              const CallMarks& marks, bool once, const json::Value& answer,
                              Spelling spelling);
// Messages as gpt_oss writes them behind "<|start|>assistant": for the user, or JSON of `answer`,
// and calls of functions, which have the channel "commentary".
Language channel_calls_language(std::span<const NamedCall> calls, bool once,
                                const json::Value& answer);
// [NAME(KEY=JSON, ...), ...] as the whole answer, or text that begins otherwise, or JSON of
// `answer`.
Language pythonic_calls_language(std::span<const CallForm> calls, bool once,
                                 const json::Value& answer);
// The same between marks among text: a list, or `are_lines`, a call on each line.
Language marked_pythonic_language(std::span<const CallForm> calls, const CallMarks& marks,
                                  bool are_lines, bool once, const json::Value& answer);
// Text, or a call and nothing else: what begins like an object is one.
Language bare_call_language(const json::Value& schema);

}  // namespace invar::grammar
