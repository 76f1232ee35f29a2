#include "frontend/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "frontend/thoughts.h"

namespace invar {

namespace {

constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>", kSpaces = " \t\r\n";

// The function of a tool, checked.
const json::Value& function_of(const json::Value& tool) {
  const json::Value* function = tool.find("function");
  const json::Value* name = function ? function->find("name") : nullptr;
  if (!name || !name->is_string())
    fail_usage(
        "expected {{\"type\": \"function\", \"function\": {{\"name\": ...}}}} as a tool, "
        "found {}",
        json::excerpt(tool));
  return *function;
}

json::Value parameters_of(const json::Value& function) {
  const json::Value* parameters = function.find("parameters");
  if (parameters && parameters->is_object()) return *parameters;
  return json::Object{{"type", "object"}, {"properties", json::Object()}};
}

// A schema that stands at `place` of another: what its references meant, they go on to mean.
json::Value moved(const json::Value& schema, const std::string& place) {
  if (schema.is_array()) {
    json::Array items;
    for (const json::Value& item : schema.as_array()) items.push_back(moved(item, place));
    return items;
  }
  if (!schema.is_object()) return schema;
  json::Object members;
  for (const auto& [word, value] : schema.as_object()) {
    const bool is_here = word == "$ref" && value.is_string() && value.as_string().starts_with('#');
    members.emplace_back(word, is_here ? json::Value("#" + place + value.as_string().substr(1))
                                       : moved(value, place));
  }
  return members;
}

// A call of the tool, as the schema at `place` of a larger one. `key`: how it names arguments that
// are of the schema `arguments`.
json::Value schema_of_call(const json::Value& function, const json::Value& arguments,
                           const std::string& key, const std::string& place) {
  const json::Value properties =
      json::Object{{"name", json::Object{{"const", function.find("name")->as_string()}}},
                   {key, moved(arguments, place + "/properties/" + key)}};
  return json::Object{
      {"type", "object"}, {"properties", properties}, {"required", json::Array{"name", key}}};
}

bool is_strict(const json::Value& function) {
  const json::Value* strict = function.find("strict");
  if (strict && !strict->is_null() && !strict->is_bool())
    fail_usage("expected strict of a tool as true or false, found {}", strict->type_name());
  return strict && *strict == json::Value(true);
}

}  // namespace

json::Value grammar_of_call(const json::Value& tools, const std::string& name) {
  json::Array calls;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value& function = function_of(tool);
    if (function.find("name")->as_string() == name)
      return json::Object{{"json", parameters_of(function)}};
    calls.push_back(schema_of_call(function, parameters_of(function), "parameters",
                                   fmt::format("/anyOf/{}", calls.size())));
  }
  if (!name.empty()) fail_usage("tool_choice names {}, which is no tool", json::quoted(name));
  if (calls.empty()) fail_usage("tool_choice asks for a call and there are no tools");
  return json::Object{{"json", json::Object{{"anyOf", std::move(calls)}}}};
}

bool has_strict(const json::Value& tools) {
  return std::ranges::any_of(tools.as_array(),
                             [](const json::Value& tool) { return is_strict(function_of(tool)); });
}

json::Value grammar_of_calls(const json::Value& tools, ToolFormat format, bool once) {
  const bool is_tagged = format == ToolFormat::tagged;
  const char* key = is_tagged ? "arguments" : "parameters";
  json::Array calls;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value& function = function_of(tool);
    const json::Value arguments = is_strict(function)
                                      ? parameters_of(function)
                                      : json::Value(json::Object{{"type", "object"}});
    calls.push_back(
        schema_of_call(function, arguments, key, fmt::format("/anyOf/{}", calls.size())));
  }
  return json::Object{{"calls", json::Object{{"open", std::string(opening_mark(format))},
                                             {"close", std::string(is_tagged ? kClose : "")},
                                             {"once", once},
                                             {"call", json::Object{{"anyOf", std::move(calls)}}}}}};
}

bool ToolCallReader::is_whole_answer() const {
  return format_ == ToolFormat::bare || format_ == ToolFormat::object ||
         format_ == ToolFormat::pythonic;
}

// Or what is held may yet do so.
bool ToolCallReader::begins_like_a_call() const {
  if (format_ == ToolFormat::object) return true;
  const size_t begin = held_.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return true;
  const std::string_view text = std::string_view(held_).substr(begin);
  if (format_ == ToolFormat::bare)
    return text[0] == '{' || text.starts_with(kPythonTag) || kPythonTag.starts_with(text);
  const size_t name = text[0] == '[' ? text.find_first_not_of(kSpaces, 1) : 0;
  return name == text.npos ||
         (name > 0 && (std::isalpha(static_cast<unsigned char>(text[name])) || text[name] == '_'));
}

void ToolCallReader::push(std::string_view piece, std::string& content,
                          std::vector<ToolCall>& calls) {
  if (format_ == ToolFormat::none) return say(piece, content);
  held_ += piece;
  if (format_ == ToolFormat::arguments) return;
  if (!is_whole_answer()) return read_marked(false, content, calls);
  if (begins_like_a_call()) return;
  say(std::exchange(held_, {}), content);
  format_ = ToolFormat::none;
}

void ToolCallReader::say(std::string_view text, std::string& content) {
  content += text;
  if (!called_ && !text.empty()) text_first_ = true;
}

// Calls that marks stand before, and the text around them.
void ToolCallReader::read_marked(bool is_last, std::string& content, std::vector<ToolCall>& calls) {
  const std::string_view open = opening_mark(format_);
  while (true) {
    if (!in_call_) {
      const size_t at = held_.find(open);
      say(std::string_view(held_).substr(
              0, at == std::string::npos ? held_.size() - beginning_of(open, held_) : at),
          content);
      if (at == std::string::npos) {
        held_.erase(0, held_.size() - beginning_of(open, held_));
        return;
      }
      held_.erase(0, at + open.size());
      mark_ = open;
      in_call_ = true;
    }
    const size_t before = calls.size();
    const CallPiece piece = read_call_piece(format_, held_, is_last, tools(), calls);
    if (piece.bytes == 0) return;
    const std::string taken = held_.substr(0, piece.bytes);
    held_.erase(0, piece.bytes);
    if (piece.is_text)
      say(std::exchange(mark_, {}) + taken, content);
    else if (calls.size() > before)
      called_ = true, mark_.clear();
    else if (!mark_.empty())
      mark_ += taken;
    if (piece.ends) in_call_ = false;
  }
}

void ToolCallReader::finish(std::string& content, std::vector<ToolCall>& calls, bool is_cut) {
  if (format_ == ToolFormat::arguments) {
    calls.push_back({name_, std::exchange(held_, {})});
    return;
  }
  const size_t before = calls.size();
  if (is_whole_answer())
    read_call_piece(format_, held_, true, tools(), calls);
  else if (in_call_)
    read_marked(true, content, calls);
  const std::string rest = std::exchange(held_, {});
  if (is_whole_answer() && calls.size() > before) return;
  // Nothing of an answer that is held to a call is text, wherever it is cut; nor is a call that was
  // cut where calls are marked.
  const bool is_held = format_ == ToolFormat::object;
  if (is_held || (is_cut && (in_call_ || is_whole_answer())))
    read_cut_call(format_, rest, tools(), calls);
  const bool is_marked_cut = is_cut && in_call_;
  if (calls.size() == before && !is_held && !is_marked_cut) say(mark_ + rest, content);
  mark_.clear();
}

}  // namespace invar
