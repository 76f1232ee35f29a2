#include "frontend/call_heads.h"

#include <algorithm>
#include <optional>

#include "frontend/argument_reader.h"
#include "frontend/json_calls.h"

namespace invar {

namespace {

constexpr std::string_view kTagOfPython = "<|python_tag|>";

using HeadKind = CallHead::Kind;

const CallHead kMore;

// A call whose arguments the text does not begin with: it is read when its end has come.
CallHead whole_head(std::optional<ToolCall> call, size_t bytes, bool ends) {
  if (!call) return {.kind = HeadKind::text, .bytes = bytes, .ends = ends};
  return {.kind = HeadKind::whole,
          .bytes = bytes,
          .name = call->name,
          .arguments = call->arguments,
          .ends = ends};
}

// NAME, [CALL_ID] and an id if there is one, [ARGS], an object.
CallHead named_head(std::string_view text) {
  constexpr std::string_view kArgs = "[ARGS]";
  const CallHead other{.kind = HeadKind::text, .ends = true};
  text = text.substr(0, kMostOfName);
  const CallHead missing = text.size() < kMostOfName ? kMore : other;
  const size_t name_end = text.find('['), odd = text.find_first_of(" \t\r\n{\"");
  if (odd != kNotThere && (name_end == kNotThere || odd < name_end)) return other;
  const size_t args = text.find(kArgs);
  if (args == kNotThere) return missing;
  const size_t begin = text.find_first_not_of(kGaps, args + kArgs.size());
  if (begin == kNotThere) return missing;
  if (text[begin] != '{') return other;
  return {.kind = HeadKind::call,
          .bytes = begin,
          .name = std::string(text.substr(0, name_end)),
          .ends = true};
}

NameMember name_member(ListedCall how) {
  return how == ListedCall::tool ? NameMember::tool_name : NameMember::name;
}

// The head of a call in a list, with which `text` begins.
CallHead item_head(std::string_view text, ListedCall how, FrontSearch& search) {
  if (text[0] != '{')
    return how == ListedCall::named ? named_head(text)
                                    : CallHead{.kind = HeadKind::text, .ends = true};
  const bool is_keyed = how == ListedCall::keyed;
  const CallHead head = is_keyed ? keyed_head(text) : json_head(text, name_member(how));
  if (head.kind != HeadKind::text) return head;
  const size_t size = search.end_of_object(text);
  if (size == 0) return kMore;
  const std::string_view object = text.substr(0, size);
  return whole_head(is_keyed ? std::nullopt : read_json_call(object, false, name_member(how)), size,
                    false);
}

}  // namespace

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

CallHead tagged_head(std::string_view text, FrontSearch& search) {
  constexpr std::string_view kToolOpen = "<tool_call>", kToolClose = "</tool_call>";
  const CallHead head = json_head(text);
  if (head.kind != HeadKind::text) return head;
  const size_t close = search.find(text, kToolClose), next = text.find(kToolOpen);
  if (next < close) return {.kind = HeadKind::text, .bytes = next, .ends = true};
  if (close == kNotThere) return kMore;
  return whole_head(read_json_call(text.substr(0, close), true), close + kToolClose.size(), true);
}

ListedCall listed_call_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::mistral:
      return ListedCall::named;
    case ToolFormat::cohere:
      return ListedCall::tool;
    case ToolFormat::apertus:
      return ListedCall::keyed;
    default:
      return ListedCall::object;
  }
}

CallHead listed_head(std::string_view text, std::string_view close, ListedCall how,
                     FrontSearch& search) {
  const size_t skipped = search.gaps(text, " \t\r\n,");
  text.remove_prefix(skipped);
  if (text.empty()) return kMore;
  if (!close.empty() && text.starts_with(close))
    return {.kind = HeadKind::skip, .bytes = skipped + close.size(), .ends = true};
  if (!close.empty() && close.starts_with(text)) return kMore;
  if (text[0] == ']') return {.kind = HeadKind::skip, .bytes = skipped + 1, .ends = close.empty()};
  if (text[0] == '[') return {.kind = HeadKind::skip, .bytes = skipped + 1};
  CallHead head = item_head(text, how, search);
  if (head.kind != HeadKind::more) head.bytes += skipped;
  return head;
}

std::optional<ToolCall> cut_listed_call(std::string_view text, ListedCall how) {
  constexpr std::string_view kArgs = "[ARGS]";
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n,["), text.size()));
  if (text.starts_with('{'))
    return how == ListedCall::keyed ? read_cut_keyed(text) : read_cut_json(text, name_member(how));
  if (text.find(kArgs) == kNotThere) return std::nullopt;
  return ToolCall{std::string(text.substr(0, text.find('['))), ""};
}

CallHead channel_head(std::string_view text, FrontSearch& search) {
  constexpr std::string_view kMessage = "<|message|>", kCallMark = "<|call|>",
                             kFunctions = "functions.";
  const std::string_view front = text.substr(0, kMostOfName);
  const size_t message = front.find(kMessage), end = search.find(text, kCallMark);
  std::string_view name = front.substr(0, message);
  if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
  const size_t begin =
      message < end ? front.find_first_not_of(kGaps, message + kMessage.size()) : kNotThere;
  if (begin != kNotThere && text[begin] == '{')
    return {.kind = HeadKind::call, .bytes = begin, .name = std::string(name)};
  if (end == kNotThere) return kMore;
  return {.kind = HeadKind::text, .bytes = end + kCallMark.size(), .ends = true};
}

CallHead bare_head(ToolFormat format, std::string_view text, const json::Value& tools, bool first,
                   FrontSearch& search) {
  const bool is_held = format == ToolFormat::object;
  if (first && kTagOfPython.starts_with(text)) return kMore;
  if (first && text.starts_with(kTagOfPython) && !is_held)
    return {.kind = HeadKind::skip, .bytes = kTagOfPython.size()};
  const size_t begin = search.gaps(text, first ? kGaps : " \t\r\n;,");
  if (begin == text.size()) return kMore;
  if (text[begin] != '{')
    return is_held ? kMore : CallHead{.kind = HeadKind::text, .bytes = text.size(), .ends = true};
  CallHead head = json_head(text.substr(begin));
  if (head.kind == HeadKind::more) return kMore;
  search.is_none = head.kind == HeadKind::text || (!is_held && !is_tool(tools, head.name));
  if (search.is_none) return kMore;
  head.bytes += begin;
  return head;
}

}  // namespace invar
