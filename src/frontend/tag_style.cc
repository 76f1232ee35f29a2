#include "frontend/tag_style.h"

#include <algorithm>

#include "frontend/argument_reader.h"

namespace invar {

namespace {

using HeadKind = CallHead::Kind;

const TagStyle kTagStyles[] = {
    {.format = ToolFormat::qwen3_coder,
     .open = "<tool_call>",
     .close = "</tool_call>",
     .call = "<function=",
     .name_end = ">",
     .call_end = "</function>",
     .key = "<parameter=",
     .key_end = ">",
     .value = "",
     .value_end = "</parameter>",
     .has_lines = true,
     .is_bare = true},
    {.format = ToolFormat::seed_oss,
     .open = "<seed:tool_call>",
     .close = "</seed:tool_call>",
     .call = "<function=",
     .name_end = ">",
     .call_end = "</function>",
     .key = "<parameter=",
     .key_end = ">",
     .value = "",
     .value_end = "</parameter>",
     .is_bare = true},
    {.format = ToolFormat::glm45,
     .open = "<tool_call>",
     .close = "</tool_call>",
     .call = "",
     .name_end = "",
     .call_end = "</tool_call>",
     .key = "<arg_key>",
     .key_end = "</arg_key>",
     .value = "<arg_value>",
     .value_end = "</arg_value>"},
    {.format = ToolFormat::hy_v3,
     .open = "<tool_calls:opensource>",
     .close = "</tool_calls:opensource>",
     .call = "<tool_call:opensource>",
     .name_end = "<tool_sep:opensource>",
     .call_end = "</tool_call:opensource>",
     .key = "<arg_key:opensource>",
     .key_end = "</arg_key:opensource>",
     .value = "<arg_value:opensource>",
     .value_end = "</arg_value:opensource>",
     .has_several = true},
    {.format = ToolFormat::minimax_m2,
     .open = "<minimax:tool_call>",
     .close = "</minimax:tool_call>",
     .call = "<invoke name=\"",
     .name_end = ">",
     .call_end = "</invoke>",
     .key = "<parameter name=\"",
     .key_end = ">",
     .value = "",
     .value_end = "</parameter>",
     .has_several = true},
    {.format = ToolFormat::minimax_m3,
     .open = "]<]minimax[>[<tool_call>",
     .close = "]<]minimax[>[</tool_call>",
     .call = "]<]minimax[>[<invoke name=\"",
     .name_end = "\">",
     .call_end = "]<]minimax[>[</invoke>",
     .key = "]<]minimax[>[<",
     .key_end = ">",
     .value = "",
     .value_end = "]<]minimax[>[</",
     .names_end = true,
     .has_several = true},
    {.format = ToolFormat::deepseek_v32,
     .open = "<｜DSML｜function_calls>",
     .close = "</｜DSML｜function_calls>",
     .call = "<｜DSML｜invoke name=\"",
     .name_end = ">",
     .call_end = "</｜DSML｜invoke>",
     .key = "<｜DSML｜parameter name=\"",
     .key_end = ">",
     .value = "",
     .value_end = "</｜DSML｜parameter>",
     .has_several = true,
     .says_kind = true},
    {.format = ToolFormat::deepseek_v4,
     .open = "<｜DSML｜tool_calls>",
     .close = "</｜DSML｜tool_calls>",
     .call = "<｜DSML｜invoke name=\"",
     .name_end = ">",
     .call_end = "</｜DSML｜invoke>",
     .key = "<｜DSML｜parameter name=\"",
     .key_end = ">",
     .value = "",
     .value_end = "</｜DSML｜parameter>",
     .has_several = true,
     .says_kind = true},
};

bool may_become(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.starts_with(text);
}

// A name between `call` and `name_end`; nothing behind a tag that is none.
CallHead tagged_name(const TagStyle& style, std::string_view rest, size_t skipped) {
  const CallHead none{.kind = HeadKind::text, .bytes = skipped + style.call.size(), .ends = true};
  const std::string_view front = rest.substr(0, kMostOfName).substr(style.call.size());
  const size_t end = front.find(style.name_end);
  std::string_view name = front.substr(0, end);
  if (end == kNotThere) return rest.size() < kMostOfName ? CallHead() : none;
  if (name.find('<') != kNotThere) return none;
  const size_t bytes = skipped + style.call.size() + end + style.name_end.size();
  if (style.has_quotes()) name = name.substr(0, name.find('"'));
  return {.kind = HeadKind::call, .bytes = bytes, .name = std::string(name)};
}

// A name behind `open`, which a tag or the call's end follows.
CallHead bare_name(const TagStyle& style, std::string_view rest, size_t skipped) {
  const CallHead none{.kind = HeadKind::text, .ends = true};
  const std::string_view front = rest.substr(0, kMostOfName);
  const CallHead missing = rest.size() < kMostOfName ? CallHead() : none;
  const size_t end = front.find_first_of(" \t\r\n<{[\"");
  if (end == kNotThere) return missing;
  if (end == 0) return none;
  const size_t tag = front.find_first_not_of(kGaps, end);
  if (tag == kNotThere) return missing;
  const std::string_view behind = front.substr(tag);
  if (may_become(behind, style.key) || may_become(behind, style.call_end)) return missing;
  if (!behind.starts_with(style.key) && !behind.starts_with(style.call_end)) return none;
  return {.kind = HeadKind::call,
          .bytes = skipped + tag,
          .name = std::string(front.substr(0, end)),
          .ends = true};
}

}  // namespace

std::string TagStyle::key_tag(std::string_view written) const {
  return std::string(key) + std::string(written) + (has_quotes() ? "\"" : std::string(key_end));
}

std::string TagStyle::value_end_of(std::string_view name) const {
  return std::string(value_end) + (names_end ? std::string(name) + std::string(key_end) : "");
}

const TagStyle* tag_style_of(ToolFormat format) {
  const auto* found = std::ranges::find(kTagStyles, format, &TagStyle::format);
  return found == std::end(kTagStyles) ? nullptr : found;
}

CallHead tag_head(const TagStyle& style, std::string_view text, FrontSearch& search) {
  const size_t skipped = search.gaps(text, kGaps);
  const std::string_view rest = text.substr(skipped);
  if (rest.empty()) return {};
  if (style.call.empty()) return bare_name(style, rest, skipped);
  if (rest.starts_with(style.close))
    return {.kind = HeadKind::skip, .bytes = skipped + style.close.size(), .ends = true};
  if (rest.starts_with(style.call)) return tagged_name(style, rest, skipped);
  if (may_become(rest, style.close) || may_become(rest, style.call)) return {};
  return {.kind = HeadKind::skip, .ends = true};
}

std::string cut_tag_name(const TagStyle& style, std::string_view text) {
  if (!style.call.empty()) return "";  // a name is whole where its tag is
  const size_t end = text.find_first_of(" \t\r\n<{[\"");
  return std::string(end == kNotThere ? "" : text.substr(0, end));
}

}  // namespace invar
