#include "frontend/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "frontend/argument_reader.h"
#include "frontend/marked_calls.h"
#include "frontend/tag_style.h"
#include "frontend/thoughts.h"
#include "sampling/grammar/schema_words.h"

namespace invar {

namespace {

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

// These words say which values a schema has, as "type" does.
constexpr const char* kCombining[] = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"};

json::Value parameters_of(const json::Value& function) {
  const json::Value* parameters = function.find("parameters");
  if (!parameters || !parameters->is_object() || parameters->as_object().empty())
    return json::Object{{"type", "object"}, {"properties", json::Object()}};
  const json::Value* type = parameters->find("type");
  const auto names_another = [&](const char* word) { return parameters->find(word) != nullptr; };
  if ((type && !type->is_null()) || std::ranges::any_of(kCombining, names_another))
    return *parameters;
  json::Value object = *parameters;  // arguments are one
  object.set("type", "object");
  return object;
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

// A word that says more of a text than which it may be; null where there is none.
const char* word_of_texts(const json::Value& schema) {
  for (const char* word : {"pattern", "minLength", "maxLength", "format", grammar::kLark})
    if (schema.find(word)) return word;
  return nullptr;
}

// The same of the schemas that one is made of.
const char* word_of_parts(const json::Value& schema) {
  for (const char* word : {"anyOf", "oneOf", "allOf"}) {
    const json::Value* parts = schema.find(word);
    if (!parts || !parts->is_array()) continue;
    for (const json::Value& part : parts->as_array()) {
      if (!part.is_object()) continue;
      const char* found = word_of_texts(part);
      if (found || (found = word_of_parts(part))) return found;
    }
  }
  return nullptr;
}

// Texts that a schema of texts names, with null where that may be; nothing: it names none. Throws
// UsageError for what else it says of a text, unless the parameter is a text and nothing else.
json::Array texts_of(const json::Value& schema, const std::string& name) {
  const json::Value* type = schema.find("type");
  const bool is_any_text =
      type && *type == json::Value("string") && !schema.find("enum") && !schema.find("const");
  const char* word = word_of_parts(schema);
  if (!word && !is_any_text) word = word_of_texts(schema);
  if (word)
    fail_usage(
        "strict tools whose parameters stand between tags hold one to {} where its type is string "
        "and it has no enum, found another one, {}",
        word, json::quoted(name));
  if (const json::Value* only = schema.find("const")) return {*only};
  const json::Value* all = schema.find("enum");
  if (!all || !all->is_array()) return {};
  json::Array texts;
  for (const json::Value& one : all->as_array())
    texts.push_back(one.is_string() ? one : json::Value(json::dump(one)));
  return texts;
}

// A schema by itself: what it refers to goes with it.
json::Value alone(const json::Value& schema, const json::Value& root) {
  if (!schema.is_object()) return schema;
  json::Value whole = schema;
  for (const char* word : {"$defs", "definitions"})
    if (const json::Value* definitions = root.find(word); definitions && !whole.find(word))
      whole.set(word, *definitions);
  return whole;
}

bool is_among(const json::Value* names, const std::string& name) {
  return names && names->is_array() &&
         std::ranges::find(names->as_array(), json::Value(name)) != names->as_array().end();
}

// Whether a schema's values are texts and nothing else.
bool is_text_alone(const json::Value& schema) {
  const json::Value* type = schema.find("type");
  if (type && !type->is_null()) return *type == json::Value("string");
  const json::Value *all = schema.find("enum"), *only = schema.find("const");
  if (only) return only->is_string();
  return all && all->is_array() && std::ranges::all_of(all->as_array(), &json::Value::is_string);
}

// How the parameters of a call are written one after another (grammar::CallForm).
json::Value form_of(const json::Value& function, ToolFormat format) {
  const json::Value parameters = parameters_of(function);
  const json::Value* properties = parameters.find("properties");
  const TagStyle* style = tag_style_of(format);
  const bool is_held = !style || is_strict(function);
  json::Array all;
  for (const auto& [name, schema] : properties && properties->is_object() && is_held
                                        ? properties->as_object()
                                        : json::Object()) {
    const bool is_text =
        style && (style->says_kind ? is_text_alone(schema) : may_be_text(schema, parameters));
    const json::Array texts = is_text ? texts_of(schema, name) : json::Array();
    all.push_back(json::Object{{"name", name},
                               {"required", is_among(parameters.find("required"), name)},
                               {"text", is_text && texts.empty()},
                               {"texts", texts},
                               {"schema", alone(schema, parameters)}});
  }
  return json::Object{
      {"name", *function.find("name")}, {"strict", is_held}, {"parameters", std::move(all)}};
}

// The words around such parameters: grammar::TagWords.
json::Value tags_of(const TagStyle& style) {
  const auto text = [](std::string_view word) { return json::Value(word); };
  const std::string quote = style.has_quotes() ? "\"" : "";
  const auto key_end = [&](const char* kind) {
    return quote + (style.says_kind ? kind : "") + std::string(style.key_end);
  };
  return json::Object{{"call", text(style.call)},
                      {"name_end", quote + std::string(style.name_end)},
                      {"call_end", text(style.call_end)},
                      {"key", text(style.key)},
                      {"key_end", key_end(" string=\"false\"")},
                      {"text_key_end", key_end(" string=\"true\"")},
                      {"value", text(style.value)},
                      {"value_end", text(style.value_end)},
                      {"names_end", style.names_end},
                      {"lines", style.has_lines},
                      {"bare", text(style.is_bare ? style.call : "")}};
}

// The same as Cohere's models write a call, and as Apertus does: {NAME: {...}}.
json::Value schema_of_tool(const json::Value& function, const json::Value& arguments,
                           const std::string& place) {
  json::Value call = schema_of_call(function, arguments, "parameters", place);
  json::Value name = *call.find("properties")->find("name");
  return json::Object{
      {"type", "object"},
      {"properties",
       json::Object{{"tool_call_id", json::Object{{"type", "string"}, {"pattern", "^[0-9]{1,4}$"}}},
                    {"tool_name", name},
                    {"parameters", *call.find("properties")->find("parameters")}}},
      {"required", json::Array{"tool_call_id", "tool_name", "parameters"}}};
}
json::Value schema_by_name(const json::Value& function, const json::Value& arguments,
                           const std::string& place) {
  const std::string name = function.find("name")->as_string();
  std::string pointer = place + "/properties/";
  for (const char c : name)
    pointer += c == '~' ? "~0" : c == '/' ? "~1" : c == '%' ? "%25" : std::string(1, c);
  return json::Object{{"type", "object"},
                      {"properties", json::Object{{name, moved(arguments, pointer)}}},
                      {"required", json::Array{name}}};
}

// [CALL, ...], as older models of Mistral's write it.
json::Value list_of_calls(json::Value call, bool once) {
  json::Value list = json::Object{{"type", "array"}, {"items", std::move(call)}, {"minItems", 1}};
  if (once) list.set("maxItems", 1);
  return list;
}

// The words around name and arguments of a call: grammar::CallWords.
json::Array words_of(ToolFormat format) {
  const auto words = [](const std::string& before, const std::string& between,
                        const std::string& after, bool has_number = false) {
    return json::Object{
        {"before", before}, {"between", between}, {"after", after}, {"number", has_number}};
  };
  if (format == ToolFormat::mistral) return {words("", "[ARGS]", "")};
  if (format == ToolFormat::gemma4) return {words("call:", "", "")};
  if (format == ToolFormat::functionary) return {words("", ">", "")};
  const MarkedCalls& style = *marked_calls_of(format);
  const std::string begin(style.call), separator(style.between), end(style.call_end);
  if (format == ToolFormat::kimi_k2) return {words(begin + "functions.", separator, end, true)};
  return {words(begin, separator, end),
          words(begin + "function" + separator, "\n```json\n", "\n```" + end)};
}

bool is_named(ToolFormat format, bool has_args) {
  return marked_calls_of(format) || format == ToolFormat::gpt_oss || format == ToolFormat::gemma4 ||
         format == ToolFormat::functionary || (format == ToolFormat::mistral && has_args);
}

bool is_list(ToolFormat format, bool has_args) {
  return format == ToolFormat::hunyuan_a13b || format == ToolFormat::nemotron_json ||
         format == ToolFormat::granite || format == ToolFormat::cohere ||
         format == ToolFormat::apertus || (format == ToolFormat::mistral && !has_args);
}

bool is_python(ToolFormat format) {
  return format == ToolFormat::pythonic || format == ToolFormat::lfm2 ||
         format == ToolFormat::olmo3;
}

// Adds to the form of calls among text what its format has of its own.
void add_style(json::Value& form, ToolFormat format) {
  const TagStyle* style = tag_style_of(format);
  form.set("several", marked_calls_of(format) || (style && style->has_several));
  if (style) form.set("tags", tags_of(*style));
  // The mark behind a call of which it is the end, too.
  if (style && style->call_end == style->close) form.set("close", "");
  if (format == ToolFormat::lfm2) form.set("python", "list");
  if (format == ToolFormat::olmo3) form.set("python", "lines");
  if (format == ToolFormat::gemma4) form.set("spelling", "marked");
}

}  // namespace

bool has_grammar(ToolFormat format) {
  return format != ToolFormat::none && format != ToolFormat::arguments &&
         format != ToolFormat::object;
}

// Answers in the formats that came first stay what clients know.
bool keeps_format(ToolFormat format) {
  return has_grammar(format) && !opening_mark(format).empty() && format != ToolFormat::tagged &&
         format != ToolFormat::qwen3_coder && format != ToolFormat::mistral &&
         format != ToolFormat::deepseek_v3 && format != ToolFormat::gpt_oss;
}

json::Value strict_tools(const json::Value& tools, const std::string& name) {
  json::Array all;
  for (const json::Value& tool : tools.as_array()) {
    json::Value function = function_of(tool);
    if (!name.empty() && *function.find("name") != json::Value(name)) continue;
    function.set("strict", true);
    all.push_back(json::Object{{"type", "function"}, {"function", std::move(function)}});
  }
  return all;
}

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

json::Value grammar_of_calls(const json::Value& tools, ToolFormat format, bool once,
                             const json::Value& answer, bool has_args) {
  const bool are_listed = is_list(format, has_args), are_named = is_named(format, has_args);
  const bool has_channels = format == ToolFormat::gpt_oss;
  const bool has_forms = tag_style_of(format) || is_python(format);
  const char* key = format == ToolFormat::tagged || are_listed ? "arguments" : "parameters";
  json::Array calls, forms, named;
  for (const json::Value& tool : tools.as_array()) {
    const json::Value& function = function_of(tool);
    if (has_forms) forms.push_back(form_of(function, format));
    const json::Value arguments = is_strict(function)
                                      ? parameters_of(function)
                                      : json::Value(json::Object{{"type", "object"}});
    if (are_named)
      named.push_back(json::Object{{"name", *function.find("name")}, {"arguments", arguments}});
    const std::string place = fmt::format("{}/anyOf/{}", are_listed ? "/items" : "", calls.size());
    calls.push_back(format == ToolFormat::cohere ? schema_of_tool(function, arguments, place)
                    : format == ToolFormat::apertus
                        ? schema_by_name(function, arguments, place)
                        : schema_of_call(function, arguments, key, place));
  }
  if (format == ToolFormat::bare && !answer.is_null()) {
    calls.push_back(moved(answer, fmt::format("/anyOf/{}", calls.size())));
    return json::Object{{"json", json::Object{{"anyOf", std::move(calls)}}}};
  }
  json::Value call = json::Object{{"anyOf", std::move(calls)}};
  if (are_listed) call = list_of_calls(std::move(call), once);
  json::Array marks;
  for (const std::string_view mark :
       has_channels ? style_of(ThoughtFormat::gpt_oss).marks : marks_of(format))
    marks.emplace_back(mark);
  json::Value form = json::Object{{"open", std::string(opening_mark(format))},
                                  {"close", std::string(closing_mark(format))},
                                  {"once", once},
                                  {"call", std::move(call)},
                                  {"marks", std::move(marks)}};
  if (has_forms) form.set("forms", std::move(forms));
  add_style(form, format);
  if (are_named) {
    form.set("named", std::move(named));
    has_channels ? form.set("channels", true) : form.set("words", words_of(format));
  }
  if (!answer.is_null()) form.set("answer", answer);
  return json::Object{{"calls", std::move(form)}};
}

}  // namespace invar
