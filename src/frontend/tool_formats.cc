// The formats in which models write calls, one after another.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "frontend/pythonic_calls.h"
#include "frontend/tool_calls.h"

namespace invar {

namespace {

constexpr std::string_view kGaps = " \t\r\n";
constexpr size_t kNotThere = std::string_view::npos;
constexpr std::string_view kToolOpen = "<tool_call>", kToolClose = "</tool_call>";
constexpr std::string_view kTagOfPython = "<|python_tag|>";
constexpr std::string_view kMistral = "[TOOL_CALLS]", kCallId = "[CALL_ID]", kArgs = "[ARGS]";
constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>",
                           kCallsEnd = "<｜tool▁calls▁end｜>", kCallBegin = "<｜tool▁call▁begin｜>",
                           kCallEnd = "<｜tool▁call▁end｜>", kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kCommentary = "<|channel|>commentary to=", kMessage = "<|message|>",
                           kCallMark = "<|call|>", kFunctions = "functions.";
constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=",
                           kEndFunction = "</function>", kEndParameter = "</parameter>";

const ToolStyle kToolStyles[] = {
    {ToolFormat::tagged, "hermes", {kToolOpen, kToolClose}},
    {ToolFormat::bare, "llama3_json", {}},
    {ToolFormat::qwen3_coder, "qwen3_coder", {kToolOpen, kToolClose}},
    {ToolFormat::mistral, "mistral", {kMistral, kCallId, kArgs}},
    {ToolFormat::deepseek_v3,
     "deepseek_v3",
     {kCallsBegin, kCallsEnd, kCallBegin, kCallEnd, kSeparator}},
    {ToolFormat::gpt_oss, "gpt_oss", {}},
    {ToolFormat::pythonic, "pythonic", {}},
};

void skip_spaces(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(kGaps), text.size()));
}

// ---- JSON

// {"name": ..., "arguments" or "parameters": {...}}
std::optional<ToolCall> call_of(std::string_view text) {
  try {
    const json::Value value = json::parse(text, "a call");
    const json::Value* name = value.find("name");
    const json::Value* arguments = value.find("arguments");
    if (!arguments) arguments = value.find("parameters");
    if (!name || !name->is_string() || !arguments) return std::nullopt;
    return ToolCall{name->as_string(),
                    arguments->is_string() ? arguments->as_string() : json::dump(*arguments)};
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The JSON of arguments in one spelling, or nothing.
std::optional<std::string> arguments_of(std::string_view text) {
  try {
    return json::dump(json::parse(text, "arguments"));
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Bytes of the object that stands at the front; 0: its end is not there.
size_t size_of_object(std::string_view text) {
  if (!text.starts_with('{')) return 0;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return 0;
}

// Arguments as far as they come.
std::string cut_arguments(std::string_view text) {
  skip_spaces(text);
  const size_t size = size_of_object(text);
  return std::string(size ? text.substr(0, size) : text);
}

// A call in JSON that was cut. Nothing where its name is not whole, or it is none.
std::optional<ToolCall> read_cut_json(std::string_view text) {
  skip_spaces(text);
  if (const size_t size = size_of_object(text)) return call_of(text.substr(0, size));
  const auto take = [&text](std::string_view word) {
    skip_spaces(text);
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  };
  if (!take("{") || !take("\"name\"") || !take(":") || !take("\"")) return std::nullopt;
  size_t end = 0;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return std::nullopt;
  const std::string quoted = "\"" + std::string(text.substr(0, end + 1));
  ToolCall call{json::parse(quoted, "a call").as_string(), ""};
  text.remove_prefix(end + 1);
  if (!take(",")) return text.empty() ? std::optional(call) : std::nullopt;
  for (const std::string_view key : {"\"parameters\"", "\"arguments\""}) {
    skip_spaces(text);
    if (key.starts_with(text)) return call;
    if (!take(key)) continue;
    if (take(":")) call.arguments = cut_arguments(text);
    return call;
  }
  return std::nullopt;
}

// ---- qwen3_coder

// What the tool's schema says of the parameter, or null.
const json::Value* schema_of(const json::Value& tools, std::string_view function,
                             std::string_view parameter) {
  if (!tools.is_array()) return nullptr;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value* of = tool.find("function");
    const json::Value* name = of ? of->find("name") : nullptr;
    if (!name || *name != json::Value(function)) continue;
    const json::Value* parameters = of->find("parameters");
    const json::Value* properties = parameters ? parameters->find("properties") : nullptr;
    return properties ? properties->find(parameter) : nullptr;
  }
  return nullptr;
}

bool may_be_other_than_text(const json::Value* schema) {
  const json::Value* type = schema ? schema->find("type") : nullptr;
  if (!schema) return false;
  return !type || !type->is_string() || type->as_string() != "string";
}

// A value without quotes: a text, or JSON where the schema says that it is something else.
json::Value value_of(std::string_view text, const json::Value* schema) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (!may_be_other_than_text(schema)) return text;
  if (text == "True" || text == "False") return text == "True";
  if (text == "None") return nullptr;
  try {
    return json::parse(text, "a parameter");
  } catch (const Error&) {
    return text;
  }
}

// A function with its parameters at the front of `text`, which moves behind it. `is_cut`: it may
// lack its end; then its arguments stay open.
std::optional<ToolCall> read_function(std::string_view& text, const json::Value& tools,
                                      bool is_cut) {
  skip_spaces(text);
  const size_t name_end = text.find('>');
  if (!text.starts_with(kFunction) || name_end == kNotThere) return std::nullopt;
  ToolCall call{std::string(text.substr(kFunction.size(), name_end - kFunction.size())), ""};
  text.remove_prefix(name_end + 1);
  json::Value arguments = json::Object();
  while (true) {
    skip_spaces(text);
    const size_t key_end = text.find('>');
    const size_t end = text.find(kEndParameter);
    if (text.starts_with(kEndFunction)) {
      text.remove_prefix(kEndFunction.size());
      call.arguments = json::dump(arguments);
      return call;
    }
    if (!text.starts_with(kParameter) || key_end == kNotThere || end == kNotThere ||
        end < key_end) {
      if (!is_cut) return std::nullopt;
      call.arguments = json::dump(arguments);
      call.arguments.pop_back();
      return call;
    }
    const std::string_view key = text.substr(kParameter.size(), key_end - kParameter.size());
    arguments.set(key, value_of(text.substr(key_end + 1, end - key_end - 1),
                                schema_of(tools, call.name, key)));
    text.remove_prefix(end + kEndParameter.size());
  }
}

bool read_functions(std::string_view text, const json::Value& tools, bool is_cut,
                    std::vector<ToolCall>& calls) {
  std::vector<ToolCall> found;
  for (skip_spaces(text); !text.empty(); skip_spaces(text)) {
    const auto call = read_function(text, tools, is_cut);
    if (!call) {
      if (!is_cut) return false;
      break;
    }
    found.push_back(*call);
    if (is_cut && !call->arguments.ends_with('}')) break;
  }
  calls.insert(calls.end(), found.begin(), found.end());
  return !found.empty();
}

// ---- Pieces, a function for each format

// Behind <tool_call>.
CallPiece tagged_piece(ToolFormat format, std::string_view text, bool is_last,
                       const json::Value& tools, std::vector<ToolCall>& calls) {
  const size_t close = text.find(kToolClose);
  if (close == kNotThere && !is_last) return {};
  const std::string_view inner = text.substr(0, close);
  const size_t before = calls.size();
  if (format == ToolFormat::qwen3_coder)
    read_functions(inner, tools, false, calls);
  else if (const auto call = call_of(inner))
    calls.push_back(*call);
  if (close == kNotThere)  // the closing mark was a stop
    return {.bytes = calls.size() > before ? text.size() : 0, .ends = true};
  return {.bytes = close + kToolClose.size(), .is_text = calls.size() == before, .ends = true};
}

// NAME, [CALL_ID] and an id if there is one, [ARGS], an object. `cut` reads what there is of it.
CallPiece named_piece(std::string_view text, size_t skipped, bool cut,
                      std::vector<ToolCall>& calls) {
  const size_t name_end = text.find('[');
  const size_t odd = text.find_first_of(" \t\r\n{\"");
  if (odd != kNotThere && (name_end == kNotThere || odd < name_end))
    return {.bytes = skipped + text.size(), .is_text = true, .ends = true};
  const size_t args = text.find(kArgs);
  if (args == kNotThere) return {};
  std::string_view rest = text.substr(args + kArgs.size());
  const size_t all = rest.size();
  skip_spaces(rest);
  const size_t size = size_of_object(rest);
  const std::string name(text.substr(0, name_end));
  if (size == 0) {
    if (cut) calls.push_back({name, cut_arguments(rest)});
    return {};
  }
  const size_t bytes = skipped + args + kArgs.size() + (all - rest.size()) + size;
  const auto arguments = arguments_of(rest.substr(0, size));
  if (arguments) calls.push_back({name, *arguments});
  return {.bytes = bytes, .is_text = !arguments, .ends = true};
}

// Behind [TOOL_CALLS]: a list of JSON, or a call by name.
CallPiece mistral_piece(std::string_view text, bool cut, std::vector<ToolCall>& calls) {
  const size_t skipped = std::min(text.find_first_not_of(" \t\r\n,"), text.size());
  text.remove_prefix(skipped);
  if (text.empty()) return {};
  if (text[0] == ']') return {.bytes = skipped + 1, .ends = true};
  if (text[0] == '[') return {.bytes = skipped + 1};
  if (text[0] != '{') return named_piece(text, skipped, cut, calls);
  const size_t size = size_of_object(text);
  if (size == 0) return {};
  const auto call = call_of(text.substr(0, size));
  if (call) calls.push_back(*call);
  return {.bytes = skipped + size, .is_text = !call};
}

// "function", a separator, NAME and JSON in a fence (V3), or NAME, a separator and JSON (V3.1).
std::optional<ToolCall> deepseek_call(std::string_view text, bool is_cut) {
  constexpr std::string_view kFence = "```json";
  const size_t separator = text.find(kSeparator);
  if (separator == kNotThere) return std::nullopt;
  std::string_view name = text.substr(0, separator);
  std::string_view rest = text.substr(separator + kSeparator.size());
  if (name == "function") {
    const size_t line = rest.find('\n');
    if (line == kNotThere) return std::nullopt;
    name = rest.substr(0, line);
    rest.remove_prefix(line + 1);
    if (rest.starts_with(kFence))
      rest.remove_prefix(kFence.size());
    else if (kFence.starts_with(rest))
      rest = {};
    if (const size_t fence = rest.rfind("\n```"); fence != kNotThere) rest = rest.substr(0, fence);
  }
  if (is_cut) return ToolCall{std::string(name), cut_arguments(rest)};
  const auto arguments = arguments_of(rest);
  return arguments ? std::optional(ToolCall{std::string(name), *arguments}) : std::nullopt;
}

CallPiece deepseek_piece(std::string_view text, bool is_last, std::vector<ToolCall>& calls) {
  const size_t skipped = std::min(text.find_first_not_of(kGaps), text.size());
  text.remove_prefix(skipped);
  if (text.starts_with(kCallsEnd)) return {.bytes = skipped + kCallsEnd.size(), .ends = true};
  if (text.starts_with(kCallBegin)) {
    const size_t end = text.find(kCallEnd);
    if (end == kNotThere && !is_last) return {};
    const auto call = deepseek_call(text.substr(0, end).substr(kCallBegin.size()), false);
    if (call) calls.push_back(*call);
    if (end == kNotThere) return {.bytes = call ? skipped + text.size() : 0};
    return {.bytes = skipped + end + kCallEnd.size(), .is_text = !call};
  }
  if (kCallsEnd.starts_with(text) || kCallBegin.starts_with(text)) return {};
  return {
      .bytes = skipped + std::min(text.find('<', 1), text.size()), .is_text = true, .ends = true};
}

// Behind "to=": NAME, a mark, JSON.
CallPiece channel_piece(std::string_view text, bool is_last, bool cut,
                        std::vector<ToolCall>& calls) {
  const size_t message = text.find(kMessage), end = text.find(kCallMark);
  if (message == kNotThere || (end == kNotThere && !is_last)) return {};
  std::string_view name = text.substr(0, message);
  if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
  const size_t begin = message + kMessage.size();
  const std::string_view body = text.substr(begin, end == kNotThere ? end : end - begin);
  const auto arguments = arguments_of(body);
  if (arguments || cut)
    calls.push_back({std::string(name), arguments ? *arguments : cut_arguments(body)});
  if (end == kNotThere) return {.bytes = arguments ? text.size() : 0, .ends = true};
  return {.bytes = end + kCallMark.size(), .is_text = !arguments, .ends = true};
}

bool is_tool(const json::Value& tools, const std::string& called) {
  if (!tools.is_array()) return true;
  return std::ranges::any_of(tools.as_array(), [&](const json::Value& tool) {
    const json::Value* function = tool.find("function");
    const json::Value* name = function ? function->find("name") : nullptr;
    return name && *name == json::Value(called);
  });
}

std::string_view without_tag(std::string_view text) {
  if (text.starts_with(kTagOfPython)) text.remove_prefix(kTagOfPython.size());
  return text;
}

}  // namespace

std::span<const ToolStyle> tool_styles() {
  return kToolStyles;
}

ToolFormat tool_format_named(std::string_view name) {
  const auto* found = std::ranges::find(kToolStyles, name, &ToolStyle::name);
  if (found == std::end(kToolStyles))
    fail_usage(
        "expected a tool-call-parser of auto, hermes, llama3_json, qwen3_coder, mistral, "
        "deepseek_v3, gpt_oss or pythonic, found \"{}\"",
        name);
  return found->format;
}

ToolFormat tool_format_of(std::string_view chat_template) {
  const auto names = [&](std::string_view word) { return chat_template.find(word) != kNotThere; };
  if (names(kFunction)) return ToolFormat::qwen3_coder;
  if (names(kToolOpen)) return ToolFormat::tagged;
  if (names(kMistral)) return ToolFormat::mistral;
  if (names(kCallsBegin)) return ToolFormat::deepseek_v3;
  if (names("<|channel|>commentary")) return ToolFormat::gpt_oss;
  if (names("[func_name1(")) return ToolFormat::pythonic;
  return names("\"parameters\"") ? ToolFormat::bare : ToolFormat::none;
}

std::string_view name_of(ToolFormat format) {
  const auto* found = std::ranges::find(kToolStyles, format, &ToolStyle::format);
  return found == std::end(kToolStyles) ? "none" : found->name;
}

std::span<const std::string_view> marks_of(ToolFormat format) {
  const auto* found = std::ranges::find(kToolStyles, format, &ToolStyle::format);
  if (found == std::end(kToolStyles)) return {};
  return found->marks;
}

std::string_view opening_mark(ToolFormat format) {
  switch (format) {
    case ToolFormat::tagged:
    case ToolFormat::qwen3_coder:
      return kToolOpen;
    case ToolFormat::mistral:
      return kMistral;
    case ToolFormat::deepseek_v3:
      return kCallsBegin;
    case ToolFormat::gpt_oss:
      return kCommentary;
    default:
      return "";
  }
}

CallPiece read_call_piece(ToolFormat format, std::string_view text, bool is_last,
                          const json::Value& tools, std::vector<ToolCall>& calls) {
  switch (format) {
    case ToolFormat::tagged:
    case ToolFormat::qwen3_coder:
      return tagged_piece(format, text, is_last, tools, calls);
    case ToolFormat::mistral:
      return mistral_piece(text, false, calls);
    case ToolFormat::deepseek_v3:
      return deepseek_piece(text, is_last, calls);
    case ToolFormat::gpt_oss:
      return channel_piece(text, is_last, false, calls);
    case ToolFormat::pythonic:
      read_pythonic_calls(text, false, calls);
      return {};
    default:
      if (const auto call = text.empty() ? std::nullopt : call_of(without_tag(text)))
        calls.push_back(*call);
      return {};
  }
}

void read_cut_call(ToolFormat format, std::string_view text, const json::Value& tools,
                   std::vector<ToolCall>& calls) {
  std::optional<ToolCall> call;
  skip_spaces(text);
  switch (format) {
    case ToolFormat::qwen3_coder:
      read_functions(text, tools, true, calls);
      return;
    case ToolFormat::mistral:
      if (text.starts_with('{'))
        call = read_cut_json(text);
      else
        mistral_piece(text, true, calls);
      break;
    case ToolFormat::deepseek_v3:
      if (text.starts_with(kCallBegin)) call = deepseek_call(text.substr(kCallBegin.size()), true);
      break;
    case ToolFormat::gpt_oss:
      channel_piece(text, true, true, calls);
      return;
    case ToolFormat::pythonic:
      read_pythonic_calls(text, true, calls);
      return;
    default:
      call = read_cut_json(without_tag(text));
      if (format == ToolFormat::bare && call && !is_tool(tools, call->name)) return;
  }
  if (call) calls.push_back(*call);
}

}  // namespace invar
