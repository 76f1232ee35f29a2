// The formats in which models write calls, one after another.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "frontend/argument_reader.h"
#include "frontend/json_calls.h"
#include "frontend/pythonic_calls.h"
#include "frontend/thoughts.h"
#include "frontend/tool_calls.h"

namespace invar {

namespace {

constexpr size_t kNotThere = std::string_view::npos;
constexpr std::string_view kToolOpen = "<tool_call>", kToolClose = "</tool_call>";
constexpr std::string_view kTagOfPython = "<|python_tag|>";
constexpr std::string_view kMistral = "[TOOL_CALLS]", kCallId = "[CALL_ID]", kArgs = "[ARGS]";
constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>",
                           kCallsEnd = "<｜tool▁calls▁end｜>", kCallBegin = "<｜tool▁call▁begin｜>",
                           kCallEnd = "<｜tool▁call▁end｜>", kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kCommentary = "<|channel|>commentary to=", kMessage = "<|message|>",
                           kCallMark = "<|call|>", kFunctions = "functions.";
constexpr std::string_view kFunction = "<function=";

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

using Kind = CallHead::Kind;

const CallHead kMore, kOther{.kind = Kind::text};

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

// A call whose arguments the text does not begin with: it is read when its end has come.
CallHead whole_head(std::optional<ToolCall> call, size_t bytes, bool ends) {
  if (!call) return {.kind = Kind::text, .bytes = bytes, .ends = ends};
  return {.kind = Kind::whole,
          .bytes = bytes,
          .name = call->name,
          .arguments = call->arguments,
          .ends = ends};
}

// ---- Heads, a function for each format

// Behind <tool_call>.
CallHead tagged_head(std::string_view text, FrontSearch& search) {
  const CallHead head = json_head(text);
  if (head.kind != kOther.kind) return head;
  const size_t close = search.find(text, kToolClose), next = text.find(kToolOpen);
  if (next < close) return {.kind = Kind::text, .bytes = next, .ends = true};
  if (close == kNotThere) return kMore;
  return whole_head(read_json_call(text.substr(0, close), true), close + kToolClose.size(), true);
}

// A function, or the end of all. Anything else is text.
CallHead coder_head(std::string_view text, FrontSearch& search) {
  const size_t skipped = search.gaps(text, kGaps);
  const std::string_view rest = text.substr(skipped);
  if (rest.starts_with(kToolClose))
    return {.kind = Kind::skip, .bytes = skipped + kToolClose.size(), .ends = true};
  const size_t end = rest.substr(0, kMostOfName).find('>');
  if (rest.starts_with(kFunction) && end != kNotThere &&
      !rest.substr(0, end + 1).ends_with(kToolClose))
    return {.kind = Kind::call,
            .bytes = skipped + end + 1,
            .name = std::string(rest.substr(kFunction.size(), end - kFunction.size()))};
  const bool goes_on =
      kToolClose.starts_with(rest) || kFunction.starts_with(rest) ||
      (rest.starts_with(kFunction) && rest.size() < kMostOfName && end == kNotThere);
  if (goes_on) return kMore;
  if (rest.starts_with(kFunction))
    return {.kind = Kind::text, .bytes = skipped + kFunction.size(), .ends = true};
  return {.kind = Kind::skip, .ends = true};
}

// NAME, [CALL_ID] and an id if there is one, [ARGS], an object.
CallHead named_head(std::string_view text) {
  const CallHead other{.kind = Kind::text, .ends = true};
  text = text.substr(0, kMostOfName);
  const CallHead missing = text.size() < kMostOfName ? kMore : other;
  const size_t name_end = text.find('['), odd = text.find_first_of(" \t\r\n{\"");
  if (odd != kNotThere && (name_end == kNotThere || odd < name_end)) return other;
  const size_t args = text.find(kArgs);
  if (args == kNotThere) return missing;
  const size_t begin = text.find_first_not_of(kGaps, args + kArgs.size());
  if (begin == kNotThere) return missing;
  if (text[begin] != '{') return other;
  return {.kind = Kind::call,
          .bytes = begin,
          .name = std::string(text.substr(0, name_end)),
          .ends = true};
}

// Behind [TOOL_CALLS]: a list of JSON, or a call by name.
CallHead mistral_head(std::string_view text, FrontSearch& search) {
  const size_t skipped = search.gaps(text, " \t\r\n,");
  text.remove_prefix(skipped);
  if (text.empty()) return kMore;
  if (text[0] == ']') return {.kind = Kind::skip, .bytes = skipped + 1, .ends = true};
  if (text[0] == '[') return {.kind = Kind::skip, .bytes = skipped + 1};
  CallHead head = text[0] == '{' ? json_head(text) : named_head(text);
  if (text[0] == '{' && head.kind == kOther.kind) {
    const size_t size = search.end_of_object(text);
    head = size ? whole_head(read_json_call(text.substr(0, size)), size, false) : kMore;
  }
  if (head.kind != Kind::more) head.bytes += skipped;
  return head;
}

// "function", a separator, NAME and JSON in a fence (V3), or NAME, a separator and JSON (V3.1).
// `name` and where the JSON begins; more where that has not come.
CallHead deepseek_name(std::string_view text) {
  constexpr std::string_view kFence = "```json";
  const size_t separator = text.find(kSeparator);
  if (separator == kNotThere) return {};
  std::string_view name = text.substr(0, separator);
  size_t begin = separator + kSeparator.size();
  if (name == "function") {
    const size_t line = text.find('\n', begin);
    if (line == kNotThere) return {};
    name = text.substr(begin, line - begin);
    begin = line + 1;
    if (text.substr(begin).starts_with(kFence))
      begin += kFence.size();
    else if (kFence.starts_with(text.substr(begin)))
      begin = text.size();
  }
  begin = std::min(text.find_first_not_of(kGaps, begin), text.size());
  return {.kind = Kind::call, .bytes = begin, .name = std::string(name)};
}

CallHead deepseek_head(std::string_view text, FrontSearch& search) {
  const size_t skipped = search.gaps(text, kGaps);
  text.remove_prefix(skipped);
  if (text.starts_with(kCallsEnd))
    return {.kind = Kind::skip, .bytes = skipped + kCallsEnd.size(), .ends = true};
  if (kCallsEnd.starts_with(text) || kCallBegin.starts_with(text)) return kMore;
  if (!text.starts_with(kCallBegin))
    return {.kind = Kind::text,
            .bytes = skipped + std::min(text.find('<', 1), text.size()),
            .ends = true};
  const size_t end = search.find(text, kCallEnd);
  const std::string_view inner =
      text.substr(0, std::min(end, kMostOfName)).substr(kCallBegin.size());
  CallHead head = deepseek_name(inner);
  if (head.kind == Kind::call && head.bytes < inner.size() && inner[head.bytes] == '{') {
    head.bytes += skipped + kCallBegin.size();
    return head;
  }
  if (end == kNotThere) return kMore;
  return {.kind = Kind::text, .bytes = skipped + end + kCallEnd.size()};
}

// Behind "to=": NAME, a mark, JSON.
CallHead channel_head(std::string_view text, FrontSearch& search) {
  const std::string_view front = text.substr(0, kMostOfName);
  const size_t message = front.find(kMessage), end = search.find(text, kCallMark);
  std::string_view name = front.substr(0, message);
  if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
  const size_t begin =
      message < end ? front.find_first_not_of(kGaps, message + kMessage.size()) : kNotThere;
  if (begin != kNotThere && text[begin] == '{')
    return {.kind = Kind::call, .bytes = begin, .name = std::string(name)};
  if (end == kNotThere) return kMore;
  return {.kind = Kind::text, .bytes = end + kCallMark.size(), .ends = true};
}

// An object as the whole answer, or several with separators between. `first`: none has come yet.
CallHead bare_head(ToolFormat format, std::string_view text, const json::Value& tools, bool first,
                   FrontSearch& search) {
  const bool is_held = format == ToolFormat::object;
  if (first && kTagOfPython.starts_with(text)) return kMore;
  if (first && text.starts_with(kTagOfPython) && !is_held)
    return {.kind = Kind::skip, .bytes = kTagOfPython.size()};
  const size_t begin = search.gaps(text, first ? kGaps : " \t\r\n;,");
  if (begin == text.size()) return kMore;
  if (text[begin] != '{')
    return is_held ? kMore : CallHead{.kind = Kind::text, .bytes = text.size(), .ends = true};
  CallHead head = json_head(text.substr(begin));
  if (head.kind == Kind::more) return kMore;
  search.is_none = head.kind == kOther.kind || (!is_held && !is_tool(tools, head.name));
  if (search.is_none) return kMore;
  head.bytes += begin;
  return head;
}

// [NAME(KEY=VALUE, ...), ...]. A list that calls no tool is read when the answer is there as a
// whole.
CallHead pythonic_head(std::string_view text, const json::Value& tools, bool first,
                       FrontSearch& search) {
  const CallHead other{.kind = Kind::text, .bytes = text.size(), .ends = true};
  text = text.substr(0, kMostOfName);
  const CallHead cut = text.size() < kMostOfName ? kMore : other;
  FrontReader reader(text);
  if (!first && reader.take("]"))
    return {.kind = Kind::skip, .bytes = text.size() - reader.rest().size(), .ends = true};
  if (!reader.take(first ? "[" : ",")) return reader.ends() ? cut : other;
  const auto word = [&] {
    std::string_view rest = reader.rest();
    skip_spaces(rest);
    size_t size = 0;
    while (size < rest.size() && (std::isalnum(static_cast<unsigned char>(rest[size])) ||
                                  rest[size] == '_' || rest[size] == '.'))
      ++size;
    const std::string found(rest.substr(0, size));
    reader = FrontReader(rest.substr(size));
    return found;
  };
  const std::string name = word();
  if (reader.rest().empty()) return cut;
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0]))) return other;
  if (!reader.take("(")) return reader.ends() ? cut : other;
  search.is_none = !is_tool(tools, name);
  if (search.is_none) return kMore;
  const size_t bytes = text.size() - reader.rest().size();
  const bool has_key = !word().empty();
  if (!reader.take(has_key ? "=" : ")")) return reader.ends() ? cut : other;
  return {.kind = Kind::call, .bytes = bytes, .name = name};
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

std::string_view unwrapped_mark(ToolFormat format) {
  return format == ToolFormat::qwen3_coder ? kFunction : std::string_view();
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

CallHead read_call_head(ToolFormat format, std::string_view text, const json::Value& tools,
                        bool first, FrontSearch& search) {
  if (search.is_none) return kMore;
  switch (format) {
    case ToolFormat::tagged:
      return tagged_head(text, search);
    case ToolFormat::qwen3_coder:
      return coder_head(text, search);
    case ToolFormat::mistral:
      return mistral_head(text, search);
    case ToolFormat::deepseek_v3:
      return deepseek_head(text, search);
    case ToolFormat::gpt_oss:
      return channel_head(text, search);
    case ToolFormat::pythonic:
      return pythonic_head(text, tools, first, search);
    default:
      return bare_head(format, text, tools, first, search);
  }
}

CallTail tail_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::tagged:
      return {.mark = kToolClose, .ends = true};
    case ToolFormat::deepseek_v3:
      return {.mark = kCallEnd};
    case ToolFormat::gpt_oss:
      return {.mark = kCallMark, .ends = true};
    case ToolFormat::qwen3_coder:
    case ToolFormat::pythonic:
      return {};
    default:
      return {.closes = true};
  }
}

void read_last_calls(ToolFormat format, std::string_view text, std::vector<ToolCall>& calls) {
  if (format == ToolFormat::pythonic) return read_pythonic_calls(text, false, calls);
  const bool is_json =
      format == ToolFormat::tagged || format == ToolFormat::bare || format == ToolFormat::object;
  const bool has_tag = format == ToolFormat::tagged;  // then a call may lack its arguments
  if (const auto call =
          is_json && !text.empty() ? read_json_call(without_tag(text), has_tag) : std::nullopt)
    calls.push_back(*call);
}

void read_cut_call(ToolFormat format, std::string_view text, const json::Value& tools,
                   std::vector<ToolCall>& calls) {
  std::optional<ToolCall> call;
  skip_spaces(text);
  switch (format) {
    case ToolFormat::qwen3_coder:
      return;
    case ToolFormat::mistral:
      if (text.starts_with('{'))
        call = read_cut_json(text);
      else if (const size_t args = text.find(kArgs); args != kNotThere)
        call = ToolCall{std::string(text.substr(0, text.find('['))), ""};
      break;
    case ToolFormat::deepseek_v3:
      if (const CallHead head =
              deepseek_name(text.substr(std::min(text.size(), kCallBegin.size())));
          text.starts_with(kCallBegin) && head.kind == Kind::call)
        call = ToolCall{head.name, ""};
      break;
    case ToolFormat::gpt_oss:
      if (const size_t message = text.find(kMessage); message != kNotThere) {
        std::string_view name = text.substr(0, message);
        if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
        call = ToolCall{std::string(name), ""};
      }
      break;
    case ToolFormat::pythonic:
      return read_pythonic_calls(text, true, calls);
    default:
      call = read_cut_json(without_tag(text));
      if (format == ToolFormat::bare && call && !is_tool(tools, call->name)) return;
  }
  if (call) calls.push_back(*call);
}

}  // namespace invar
