#include "frontend/json_calls.h"

#include "base/error.h"
#include "frontend/argument_reader.h"
#include "frontend/front_reader.h"

namespace invar {

namespace {

// Arguments as far as they come.
std::string cut_arguments(std::string_view text) {
  skip_spaces(text);
  const size_t size = BracketScan().end_in(text);
  return std::string(size ? text.substr(0, size) : text);
}

std::string word_of(NameMember member) {
  return member == NameMember::name ? "name" : "tool_name";
}

// Takes the front of a call up to its name, which it returns.
std::optional<std::string> take_name(FrontReader& reader, NameMember member) {
  if (!reader.take("{")) return std::nullopt;
  const bool has_id = member == NameMember::tool_name && reader.take("\"tool_call_id\"");
  if (has_id && (!reader.take(":") || !reader.quoted() || !reader.take(","))) return std::nullopt;
  if (!reader.take("\"" + word_of(member) + "\"") || !reader.take(":")) return std::nullopt;
  return reader.quoted();
}

// A call's head, whose arguments are what stands in front of the reader.
CallHead head_before(const FrontReader& reader, std::string_view text, const std::string& name) {
  const CallHead none{.kind = CallHead::Kind::text};
  std::string_view rest = reader.rest();
  skip_spaces(rest);
  if (rest.empty()) return text.size() < kMostOfName ? CallHead() : none;
  if (rest[0] != '{') return none;
  return {.kind = CallHead::Kind::call, .bytes = text.size() - rest.size(), .name = name};
}

}  // namespace

std::optional<ToolCall> read_json_call(std::string_view text, bool may_lack, NameMember member) {
  try {
    const json::Value value = json::parse(text, "a call");
    const json::Value* name = value.find(word_of(member));
    const json::Value* arguments = value.find("arguments");
    if (!arguments) arguments = value.find("parameters");
    if (!name || !name->is_string()) return std::nullopt;
    if (!arguments && may_lack && value.as_object().size() == 1)
      return ToolCall{name->as_string(), "{}"};
    if (!arguments) return std::nullopt;
    const std::string written =
        arguments->is_string() ? arguments->as_string() : json::dump(*arguments);
    if (!json::parse(written, "arguments").is_object()) return std::nullopt;
    return ToolCall{name->as_string(), written};
  } catch (const Error&) {
    return std::nullopt;
  }
}

CallHead json_head(std::string_view text, NameMember member) {
  const CallHead more, not_so{.kind = CallHead::Kind::text};
  text = text.substr(0, kMostOfName);
  const bool may_go_on = text.size() < kMostOfName;
  FrontReader reader(text);
  const auto missing = [&] { return reader.ends() && may_go_on ? more : not_so; };
  const auto name = take_name(reader, member);
  if (!name || !reader.take(",")) return missing();
  if (!reader.take("\"arguments\"") && !reader.take("\"parameters\"")) return missing();
  return reader.take(":") ? head_before(reader, text, *name) : missing();
}

CallHead keyed_head(std::string_view text) {
  text = text.substr(0, kMostOfName);
  FrontReader reader(text);
  const auto name = reader.take("{") ? reader.quoted() : std::nullopt;
  if (name && reader.take(":")) return head_before(reader, text, *name);
  return reader.ends() && text.size() < kMostOfName ? CallHead()
                                                    : CallHead{.kind = CallHead::Kind::text};
}

std::optional<ToolCall> read_cut_keyed(std::string_view text) {
  FrontReader reader(text);
  const auto name = reader.take("{") ? reader.quoted() : std::nullopt;
  const bool goes_on = name && (reader.take(":") ? reader.take("{") : true);
  return goes_on || (name && reader.ends()) ? std::optional(ToolCall{*name, ""}) : std::nullopt;
}

std::optional<ToolCall> read_cut_json(std::string_view text, NameMember member) {
  FrontReader reader(text);
  const auto name = take_name(reader, member);
  if (!name) return std::nullopt;
  if (!reader.take(",")) return reader.ends() ? std::optional(ToolCall{*name, ""}) : std::nullopt;
  for (const std::string_view key : {"\"parameters\"", "\"arguments\""}) {
    if (!reader.take(key)) continue;
    ToolCall call{*name, ""};
    if (reader.take(":")) call.arguments = cut_arguments(reader.rest());
    return call;
  }
  return reader.ends() ? std::optional(ToolCall{*name, ""}) : std::nullopt;
}

}  // namespace invar
