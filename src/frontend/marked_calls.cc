#include "frontend/marked_calls.h"

#include <algorithm>

#include "frontend/argument_reader.h"

namespace invar {

namespace {

using HeadKind = CallHead::Kind;

const MarkedCalls kMarkedCalls[] = {
    {.format = ToolFormat::deepseek_v3,
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .call = "<｜tool▁call▁begin｜>",
     .between = "<｜tool▁sep｜>",
     .call_end = "<｜tool▁call▁end｜>"},
    {.format = ToolFormat::kimi_k2,
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>",
     .call = "<|tool_call_begin|>",
     .between = "<|tool_call_argument_begin|>",
     .call_end = "<|tool_call_end|>"},
};

// functions.NAME:NUMBER, in which a model may leave out what is not the name.
std::string name_in_id(std::string_view id) {
  constexpr std::string_view kFunctions = "functions.", kDigits = "0123456789";
  const size_t begin = std::min(id.find_first_not_of(kGaps), id.size());
  id = id.substr(begin, id.find_last_not_of(kGaps) + 1 - begin);
  if (id.starts_with(kFunctions)) id.remove_prefix(kFunctions.size());
  const size_t colon = id.rfind(':');
  const bool has_number = colon != kNotThere && colon > 0 && colon + 1 < id.size() &&
                          id.find_first_not_of(kDigits, colon + 1) == kNotThere;
  return std::string(id.substr(0, has_number ? colon : id.size()));
}

// "function", a separator, NAME and JSON in a fence (DeepSeek V3), or NAME or an id with it, a
// separator and JSON. `name` and where the JSON begins; more where that has not come.
CallHead name_behind(const MarkedCalls& style, std::string_view text) {
  constexpr std::string_view kFence = "```json";
  const size_t separator = text.find(style.between);
  if (separator == kNotThere) return {};
  std::string_view name = text.substr(0, separator);
  size_t begin = separator + style.between.size();
  const bool is_deepseek = style.format == ToolFormat::deepseek_v3;
  if (is_deepseek && name == "function") {
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
  return {.kind = HeadKind::call,
          .bytes = begin,
          .name = is_deepseek ? std::string(name) : name_in_id(name)};
}

}  // namespace

const MarkedCalls* marked_calls_of(ToolFormat format) {
  const auto* found = std::ranges::find(kMarkedCalls, format, &MarkedCalls::format);
  return found == std::end(kMarkedCalls) ? nullptr : found;
}

CallHead marked_head(const MarkedCalls& style, std::string_view text, FrontSearch& search) {
  const size_t skipped = search.gaps(text, kGaps);
  text.remove_prefix(skipped);
  if (text.starts_with(style.close))
    return {.kind = HeadKind::skip, .bytes = skipped + style.close.size(), .ends = true};
  if (style.close.starts_with(text) || style.call.starts_with(text)) return {};
  if (!text.starts_with(style.call))
    return {.kind = HeadKind::text,
            .bytes = skipped + std::min(text.find('<', 1), text.size()),
            .ends = true};
  const size_t end = search.find(text, style.call_end);
  const std::string_view inner =
      text.substr(0, std::min(end, kMostOfName)).substr(style.call.size());
  CallHead head = name_behind(style, inner);
  if (head.kind == HeadKind::call && head.bytes < inner.size() && inner[head.bytes] == '{') {
    head.bytes += skipped + style.call.size();
    return head;
  }
  if (end == kNotThere) return {};
  return {.kind = HeadKind::text, .bytes = skipped + end + style.call_end.size()};
}

CallHead gemma_head(std::string_view text) {
  constexpr std::string_view kCall = "call:";
  const CallHead none{.kind = HeadKind::text, .ends = true};
  const std::string_view front = text.substr(0, kMostOfName);
  const CallHead missing = text.size() < kMostOfName ? CallHead() : none;
  const size_t begin = std::min(front.find_first_not_of(kGaps), front.size());
  const std::string_view rest = front.substr(begin);
  if (rest.size() < kCall.size() && kCall.starts_with(rest)) return missing;
  if (!rest.starts_with(kCall)) return none;
  const std::string_view name = rest.substr(kCall.size());
  const size_t end = name.find_first_of("{<} \t\r\n");
  if (end == kNotThere) return missing;
  if (end == 0 || name[end] != '{') return none;
  return {.kind = HeadKind::call,
          .bytes = begin + kCall.size() + end,
          .name = std::string(name.substr(0, end)),
          .ends = true};
}

CallHead function_head(std::string_view text) {
  const CallHead none{.kind = HeadKind::text, .ends = true};
  const std::string_view front = text.substr(0, kMostOfName);
  const CallHead missing = text.size() < kMostOfName ? CallHead() : none;
  const size_t end = front.find_first_of("<> \t\r\n{\"");
  if (end == kNotThere) return missing;
  if (end == 0 || front[end] != '>') return none;
  const size_t begin = front.find_first_not_of(kGaps, end + 1);
  if (begin == kNotThere) return missing;
  if (front[begin] != '{') return none;
  return {.kind = HeadKind::call,
          .bytes = begin,
          .name = std::string(front.substr(0, end)),
          .ends = true};
}

std::optional<ToolCall> cut_marked_call(const MarkedCalls& style, std::string_view text) {
  if (!text.starts_with(style.call)) return std::nullopt;
  const CallHead head = name_behind(style, text.substr(style.call.size()));
  if (head.kind != HeadKind::call) return std::nullopt;
  return ToolCall{head.name, ""};
}

}  // namespace invar
