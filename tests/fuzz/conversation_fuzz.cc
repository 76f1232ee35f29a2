// Bodies of chats, messages and responses, put together as the input's bytes choose: an Error, or a
// request with one prompt, in which no value is spelled as Python spells it. Random edits of JSON
// texts rarely get past the parser; these bodies do.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "frontend/openai.h"
#include "frontend/responses.h"
#include "tokenizer/make_tokenizer.h"

using namespace invar;
using json::Array;
using json::Object;
using json::Value;

namespace {

// The input's bytes as choices. Behind its end every choice is the first one.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  size_t below(size_t count) { return at_ < size_ ? data_[at_++] % count : 0; }
  template <size_t N>
  std::string_view word(const std::string_view (&words)[N]) {
    return words[below(N)];
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

constexpr std::string_view kTexts[] = {"words", "",           " ",      "\n",  "<think>",
                                       "{}",    "{\"a\": 1}", "{\"a\"", "null"};
constexpr std::string_view kNames[] = {"f", "", "g h", "12345678901234567890"};

std::string text(Choices& choices) {
  return std::string(choices.word(kTexts));
}

// What may stand where something else is expected.
Value anything(Choices& choices) {
  switch (choices.below(9)) {
    case 0:
      return nullptr;
    case 1:
      return text(choices);
    case 2:
      return Array();
    case 3:
      return Object();
    case 4:
      return -1;
    case 5:
      return true;
    case 6:
      return 1e300;
    case 7:
      return Array{nullptr};
    default:
      return Object{{"type", text(choices)}};
  }
}

// Adds a member, leaves it out, or gives it another kind of value.
template <typename F>
void add(Choices& choices, Object& object, const char* name, F value) {
  const size_t way = choices.below(8);
  if (way < 6) object.emplace_back(name, value());
  if (way == 6) object.emplace_back(name, anything(choices));
}

template <typename F>
Value list(Choices& choices, F one) {
  Array all;
  for (size_t left = choices.below(4); left > 0; --left) all.push_back(one(choices));
  return all;
}

Value part(Choices& choices);

Value content(Choices& choices) {
  switch (choices.below(5)) {
    case 0:
      return text(choices);
    case 1:
      return nullptr;
    case 2:
      return Array();
    default:
      return list(choices, part);
  }
}

// A part of a chat's content, or a block of a message's.
Value part(Choices& choices) {
  static constexpr std::string_view kTypes[] = {
      "text",  "input_text",     "output_text", "thinking",          "tool_use", "tool_result",
      "image", "tool_reference", "document",    "redacted_thinking", "refusal"};
  Object made;
  add(choices, made, "type", [&] { return Value(choices.word(kTypes)); });
  add(choices, made, "text", [&] { return Value(text(choices)); });
  if (choices.below(2) == 0) return made;
  add(choices, made, "thinking", [&] { return Value(text(choices)); });
  add(choices, made, "signature", [&] { return Value(text(choices)); });
  add(choices, made, "id", [&] { return Value(choices.word(kNames)); });
  add(choices, made, "tool_use_id", [&] { return Value(choices.word(kNames)); });
  add(choices, made, "name", [&] { return Value(choices.word(kNames)); });
  add(choices, made, "input", [&] { return anything(choices); });
  if (choices.below(3) == 0) add(choices, made, "content", [&] { return content(choices); });
  return made;
}

Value call(Choices& choices) {
  Object function, made;
  add(choices, function, "name", [&] { return Value(choices.word(kNames)); });
  add(choices, function, "arguments",
      [&] { return choices.below(2) ? Value(text(choices)) : anything(choices); });
  add(choices, made, "id", [&] { return Value(choices.word(kNames)); });
  const bool is_custom = choices.below(8) == 7;
  add(choices, made, "type", [&] { return Value(is_custom ? "custom" : "function"); });
  add(choices, function, "input", [&] { return Value(text(choices)); });
  add(choices, made, is_custom ? "custom" : "function", [&] { return Value(function); });
  return made;
}

// A message of a chat or of Anthropic's, or an item of a response.
Value message(Choices& choices) {
  static constexpr std::string_view kRoles[] = {"user", "assistant", "system",
                                                "tool", "developer", "function"};
  Object made;
  add(choices, made, "role", [&] { return Value(choices.word(kRoles)); });
  add(choices, made, "content", [&] { return content(choices); });
  if (choices.below(2) == 0) return made;
  add(choices, made, "name", [&] { return Value(choices.word(kNames)); });
  add(choices, made, "tool_calls", [&] { return list(choices, call); });
  add(choices, made, "tool_call_id", [&] { return Value(choices.word(kNames)); });
  add(choices, made, "reasoning_content", [&] { return Value(text(choices)); });
  if (choices.below(8) == 7) made.emplace_back("prefix", true);
  return made;
}

Value item(Choices& choices) {
  static constexpr std::string_view kTypes[] = {
      "message",          "reasoning",       "function_call",    "function_call_output",
      "custom_tool_call", "web_search_call", "local_shell_call", "custom_tool_call_output",
      "item_reference"};
  if (choices.below(2) == 0) return message(choices);
  Object made;
  add(choices, made, "type", [&] { return Value(choices.word(kTypes)); });
  add(choices, made, "call_id", [&] { return Value(choices.word(kNames)); });
  add(choices, made, "name", [&] { return Value(choices.word(kNames)); });
  add(choices, made, "arguments", [&] { return Value(text(choices)); });
  add(choices, made, "output", [&] { return content(choices); });
  add(choices, made, "input", [&] { return Value(text(choices)); });
  if (choices.below(2) == 0) return made;
  add(choices, made, "role", [] { return Value("assistant"); });
  add(choices, made, "content", [&] { return content(choices); });
  add(choices, made, "summary", [&] { return list(choices, part); });
  add(choices, made, "encrypted_content", [&] { return Value(text(choices)); });
  return made;
}

Value property(Choices& choices) {
  static constexpr std::string_view kTypes[] = {"string", "integer", "boolean",
                                                "null",   "array",   "x"};
  Object made;
  add(choices, made, "type", [&] { return Value(choices.word(kTypes)); });
  if (choices.below(4) == 0) made.emplace_back("enum", anything(choices));
  if (choices.below(8) == 0) made.emplace_back("$ref", "#/$defs/D");
  if (choices.below(8) == 0) made.emplace_back("pattern", text(choices));
  return made;
}

Value schema(Choices& choices) {
  if (choices.below(2)) return anything(choices);
  Object made = {{"type", "object"}};
  if (choices.below(2) == 0) return made;
  Object properties;
  for (size_t i = choices.below(4); i > 0; --i)
    properties.emplace_back(choices.word(kNames), property(choices));
  made.emplace_back("properties", std::move(properties));
  add(choices, made, "required", [&] { return Value(json::Array{choices.word(kNames)}); });
  return made;
}

// The form of a custom tool's text, as chat completions or responses have it.
Value format(Choices& choices) {
  static constexpr std::string_view kSyntaxes[] = {"regex", "lark", ""};
  Object made = {{"type", "grammar"}}, inner;
  add(choices, inner, "syntax", [&] { return Value(choices.word(kSyntaxes)); });
  add(choices, inner, "definition", [&] { return Value(text(choices)); });
  if (choices.below(2)) made.insert(made.end(), inner.begin(), inner.end());
  add(choices, made, "grammar", [&] { return Value(inner); });
  return made;
}

Value tool(Choices& choices) {
  static constexpr std::string_view kTypes[] = {"function",    "custom",    "web_search",
                                                "local_shell", "namespace", "bash_20250124"};
  Object made;
  add(choices, made, "type", [&] { return Value(choices.word(kTypes)); });
  add(choices, made, "name", [&] { return Value(choices.word(kNames)); });
  add(choices, made, "description", [&] { return Value(text(choices)); });
  add(choices, made, "input_schema", [&] { return schema(choices); });
  if (choices.below(2) == 0) return made;
  add(choices, made, "parameters", [&] { return schema(choices); });
  add(choices, made, "format", [&] { return anything(choices); });
  add(choices, made, "tools", [&] { return list(choices, call); });
  Object function;
  add(choices, function, "name", [&] { return Value(choices.word(kNames)); });
  add(choices, function, "parameters", [&] { return schema(choices); });
  if (choices.below(2) == 0) function.emplace_back("strict", true);
  add(choices, made, "function", [&] { return Value(function); });
  if (choices.below(4) < 3) return made;
  add(choices, function, "format", [&] { return format(choices); });
  add(choices, made, "custom", [&] { return Value(function); });
  return made;
}

Value choice(Choices& choices) {
  static constexpr std::string_view kWords[] = {"auto", "none",     "required",     "any",
                                                "tool", "function", "allowed_tools"};
  if (choices.below(2) == 0) return choices.word(kWords);
  Object made = {{"type", choices.word(kWords)}, {"name", choices.word(kNames)}};
  if (choices.below(2) == 0) return made;
  add(choices, made, "mode", [&] { return Value(choices.word(kWords)); });
  add(choices, made, "tools", [&] { return list(choices, tool); });
  return choices.below(2) ? Value(made)
                          : Value(Object{{"type", "allowed_tools"}, {"allowed_tools", made}});
}

Value body(Choices& choices, openai::Endpoint endpoint) {
  const bool is_response = endpoint == openai::Endpoint::responses;
  Object made;
  add(choices, made, is_response ? "input" : "messages",
      [&] { return list(choices, is_response ? item : message); });
  if (endpoint == openai::Endpoint::messages) made.emplace_back("max_tokens", 4);
  if (choices.below(2) == 0) return made;
  add(choices, made, "tools", [&] { return list(choices, tool); });
  if (choices.below(2) == 0) add(choices, made, "tool_choice", [&] { return choice(choices); });
  if (choices.below(2) == 0) return made;
  const char* const system = is_response ? "instructions" : "system";
  if (endpoint != openai::Endpoint::chat)
    add(choices, made, system, [&] { return content(choices); });
  for (const char* name : {"background", "truncation", "store", "parallel_tool_calls"})
    if (choices.below(8) == 7) made.emplace_back(name, choices.below(2) == 0);
  if (choices.below(8) == 7)
    made.emplace_back(
        "response_format",
        Object{{"type", "json_schema"}, {"json_schema", Object{{"schema", schema(choices)}}}});
  for (const char* name : {"thinking", "output_config", "context_management", "text", "reasoning",
                           "include", "response_format", "continue_final_message"})
    if (choices.below(8) == 7) made.emplace_back(name, anything(choices));
  return made;
}

// A conversation without its first turns has the others.
void check_turns(const json::Array& items, size_t without) {
  const size_t turns = openai::turns_of(items);
  without = std::min(without, turns);
  const json::Array left = openai::without_turns(items, without);
  CHECK(openai::turns_of(left) == turns - without, "each turn is left out as a whole");
  CHECK(without > 0 || left.size() == items.size(), "nothing is left out of all");
  CHECK(without == turns || items.empty() || Value(left.back()) == items.back(),
        "the last item stays");
}

ChatTemplate template_of(const char* source) {
  return ChatTemplate::from_texts({.chat_template_jinja = source}, "fuzz");
}

// Templates that show what they are given in the ways of published ones.
constexpr const char* kTemplates[] = {
    "{% for m in messages %}{{ m.role + m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name ~ (c.function.arguments | tojson) }}{% endfor %}{% endfor %}"
    "{{ tools | tojson if tools }}",
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system') }}{% endif %}{{ m.content }}{% endfor %}",
    // Whatever is there is printed; arguments are joined to a text.
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.name }}{{ m.tool_call_id }}"
    "{{ m.reasoning_content }}{% if 'tool_calls' in m %}{% for c in m.tool_calls %}"
    "{{ c.id + c.type + c.function.name + c.function.arguments }}{% endfor %}{% endif %}"
    "{% endfor %}{% if tools is defined %}{% for t in tools %}"
    "{{ t.function.name + t.function.description }}{{ t.function.parameters | tojson }}"
    "{% endfor %}{% endif %}",
    // Parts of a content, and arguments one by one.
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}"
    "{% for name, value in c.function.arguments | items %}{{ name }}={{ value | tojson }}"
    "{% endfor %}{% endfor %}{% endfor %}",
    // Roles in turns, one call in a message, ids of nine letters and digits.
    "{% for m in messages %}{% if loop.index0 > 0 and m.role == messages[loop.index0 - 1].role %}"
    "{{ raise_exception('turns') }}{% endif %}{% if m.tool_calls %}{% if m.tool_calls | length > 1 "
    "or m.tool_calls[0].id | length != 9 %}{{ raise_exception('calls') }}{% endif %}"
    "{{ m.tool_calls[0].function | tojson }}{% elif m.content is none %}"
    "{{ raise_exception('words') }}{% else %}{{ m.content | trim }}{% endif %}{% endfor %}",
    // Turns aside from calls, and an answer has words.
    "{% set ns = namespace(i=0) %}{% for m in messages %}{% if m.role == 'user' or "
    "(m.role == 'assistant' and not m.tool_calls) %}{% if (m.role == 'user') != (ns.i % 2 == 0) or "
    "not m.content %}{{ raise_exception('turns') }}{% endif %}{% set ns.i = ns.i + 1 %}{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name ~ "
    "(c.function.arguments | tojson) }}{% endfor %}{% endfor %}"};

// No text of a body has one of these words.
void check_words(std::string_view prompt) {
  for (const std::string_view word : {"None", "True", "False", "{'", "['", "Undefined"})
    CHECK(prompt.find(word) == prompt.npos, "a prompt shows no value as Python spells it");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MadeTokenizer kMade = make_tokenizer(300, 1);
  static const Tokenizer kTokenizer = Tokenizer::from_texts(kMade.texts, "fuzz");
  static const std::vector<ChatTemplate> kChats = [] {
    std::vector<ChatTemplate> chats;
    for (const char* source : kTemplates) chats.push_back(template_of(source));
    return chats;
  }();
  static const ThoughtSeal kSeal("a key of the fuzz's own, of any length");
  Choices choices(data, size);
  constexpr openai::Endpoint kEndpoints[] = {openai::Endpoint::chat, openai::Endpoint::messages,
                                             openai::Endpoint::responses};
  const openai::Endpoint endpoint = kEndpoints[choices.below(std::size(kEndpoints))];
  const ChatTemplate& chat = kChats[choices.below(kChats.size())];
  const auto styles = tool_styles();
  const Value earlier = list(choices, item);
  check_turns(earlier.as_array(), choices.below(4));
  ConstraintCompiler constraints(kTokenizer);
  const openai::Context context{.vocab = 300,
                                .tokenizer = &kTokenizer,
                                .end_tokens = {kMade.eos_id},
                                .chat = &chat,
                                .clock = [] { return std::tm{.tm_mday = 1, .tm_year = 124}; },
                                .tool_format = styles[choices.below(styles.size())].format,
                                .seal = choices.below(2) ? &kSeal : nullptr,
                                .constraints = &constraints,
                                .earlier = &earlier.as_array(),
                                .ignores_unknown = choices.below(2) == 0};
  try {
    const openai::Request request =
        openai::parse_request(body(choices, endpoint), endpoint, context);
    CHECK(request.prompts.size() == 1, "a conversation is one prompt");
    check_words(std::get<std::string>(request.prompts[0]));
  } catch (const UsageError&) {  // any other error is the server's own fault
  }
  return 0;
}
