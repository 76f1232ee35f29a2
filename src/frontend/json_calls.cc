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

}  // namespace

std::optional<ToolCall> read_json_call(std::string_view text, bool may_lack) {
  try {
    const json::Value value = json::parse(text, "a call");
    const json::Value* name = value.find("name");
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

CallHead json_head(std::string_view text) {
  const CallHead more, not_so{.kind = CallHead::Kind::text};
  text = text.substr(0, kMostOfName);
  const bool may_go_on = text.size() < kMostOfName;
  FrontReader reader(text);
  const auto missing = [&] { return reader.ends() && may_go_on ? more : not_so; };
  if (!reader.take("{") || !reader.take("\"name\"") || !reader.take(":")) return missing();
  const auto name = reader.quoted();
  if (!name || !reader.take(",")) return missing();
  if (!reader.take("\"arguments\"") && !reader.take("\"parameters\"")) return missing();
  if (!reader.take(":")) return missing();
  std::string_view rest = reader.rest();
  skip_spaces(rest);
  if (rest.empty()) return may_go_on ? more : not_so;
  if (rest[0] != '{') return not_so;
  return {.kind = CallHead::Kind::call, .bytes = text.size() - rest.size(), .name = *name};
}

std::optional<ToolCall> read_cut_json(std::string_view text) {
  FrontReader reader(text);
  if (!reader.take("{") || !reader.take("\"name\"") || !reader.take(":")) return std::nullopt;
  const auto name = reader.quoted();
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
