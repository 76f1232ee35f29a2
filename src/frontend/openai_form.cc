// The form of an answer: tools and what their calls are held to, schemas, patterns, grammars.
#include "frontend/openai_form.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "frontend/request_limits.h"
#include "sampling/grammar/languages.h"

namespace invar::openai {

namespace {

constexpr const char* kNotHeld =
    "strict tools and parallel_tool_calls false are not held to in the model's format of calls";

// Readers take what strict tools say as it was held to.
void say_not_held(Request& request) {
  request.warnings.add(kNotHeld);
  if (!request.tool_list.is_array()) return;
  json::Array tools = request.tool_list.as_array();
  for (json::Value& tool : tools)
    if (const json::Value* function = tool.find("function"); function && function->is_object()) {
      json::Value other = *function;
      other.set("strict", false);
      tool.set("function", std::move(other));
    }
  request.tool_list = std::move(tools);
}

// Whether calls among text are held to what tools say. An answer that goes on with a message's
// words has no header of gpt_oss's.
bool holds_calls(const Request& request) {
  return has_grammar(request.tools) && (request.tools != ToolFormat::gpt_oss || !request.goes_on);
}

// The schema of an answer that may be calls in its place: beside tools that nobody has to call,
// in a format with a grammar. Null: there is none.
const json::Value* schema_beside_calls(const Request& request, const json::Value& what) {
  static const json::Value kAnyObject = json::Object{{"type", "object"}};
  const json::Value* schema = what.is_object() ? what.find("json") : nullptr;
  if (what.is_object() && what.find("json_object")) schema = &kAnyObject;
  const bool is_alone = schema && what.as_object().size() == 1;
  if (!is_alone || !schema->is_object() || !holds_calls(request)) return nullptr;
  return schema;
}

// JSON is compact unless vLLM's words ask for another spacing.
void read_structured(const std::string& kind, const json::Value& form, json::Value& what) {
  if (kind == "whitespace_pattern") return add_form("whitespace", form, what);
  if (kind != "disable_any_whitespace") return add_form(kind, form, what);
  if (!form.is_bool())
    fail_usage("expected disable_any_whitespace as true or false, found {}", form.type_name());
  if (!form.as_bool()) add_form("whitespace", std::string(grammar::kAnyLayout), what);
}

// As OpenAI names it, or, as llama.cpp and others do, without a name.
const json::Value* schema_in(const json::Value& format) {
  const json::Value* named = format.find("json_schema");
  const json::Value* schema = named ? named->find("schema") : nullptr;
  return schema ? schema : format.find("schema");
}

// Any object, or, as others' servers have it, one of a schema beside.
void read_object(const json::Value& format, json::Value& what) {
  const json::Value* schema = schema_in(format);
  if (!schema || schema->is_null()) return what.set("json_object", true);
  if (!schema->is_object())
    fail_usage("expected the schema of response_format as an object, found {}",
               json::excerpt(*schema));
  json::Value of_object = *schema;
  if (!schema->find("type") && !schema->find("$ref")) of_object.set("type", "object");
  add_form("json", of_object, what);
}

void read_response_format(const json::Value& format, json::Value& what) {
  const json::Value* type = format.find("type");
  const std::string name = type && type->is_string() ? type->as_string() : "";
  if (name == "text") return;
  if (name == "json_object") return read_object(format, what);
  const json::Value* schema = schema_in(format);
  if (name != "json_schema" || !schema)
    fail_usage(
        "expected response_format of type text, json_object or json_schema with a "
        "schema, found {}",
        json::excerpt(format));
  add_form("json", *schema, what);
}

}  // namespace

void add_form(const std::string& kind, const json::Value& form, json::Value& what) {
  const json::Value* other = what.find(kind);
  if (other && *other != form)
    fail_usage("expected one form of the answer, found two of the kind {}: {} and {}", kind,
               json::excerpt(*other), json::excerpt(form));
  what.set(kind, form);
}

void FormReader::read_form(Request& request) {
  json::Value& what = grammar_;
  std::string& field = request.form_field;
  const bool must_call = !what.is_null();
  field = must_call ? "tools" : "";
  if (const json::Value* v = form_in("structured_outputs", field)) {
    if (!v->is_object())
      fail_usage("expected structured_outputs as an object, found {}", v->type_name());
    within("structured_outputs", [&] {
      for (const auto& [kind, form] : v->as_object())
        if (!form.is_null()) read_structured(kind, form, what);  // what is left open may be null
    });
  }
  for (const std::string kind : {"regex", "choice", "json", "grammar"})
    if (const json::Value* v = form_in("guided_" + kind, field))
      within(field, [&] { add_form(kind, *v, what); });
  json::Value unused;  // response_format is of a text, and an answer that must be a call has none
  std::string of_text;
  if (const json::Value* v = form_in("response_format", must_call ? of_text : field))
    within("response_format", [&] { read_response_format(*v, must_call ? unused : what); });
  const auto check = [&] { within(field, [&] { check_form(what); }); };
  check();
  if (const json::Value* schema = schema_beside_calls(request, what)) {
    const json::Value answer = *schema;
    what = {};
    hold_calls(request, answer);
    check();
  } else if (what.is_null()) {
    hold_calls(request);
    field = "tools";
    check();
  }
  if (what.is_null()) return;
  if (context_.tokenizer) context_.tokenizer->expect_text();
  request.grammar = what;
  request.base.structured_output = json::dump(what);
  if (context_.constraints) request.base.constraint = context_.constraints->compile(what);
}

const json::Value* FormReader::form_in(const std::string& name, std::string& field) const {
  const json::Value* found = fields_.find(name);
  if (found) field = name;
  return found;
}

void FormReader::hold_calls(Request& request, const json::Value& answer) {
  const ToolFormat format = request.tools;
  if (!holds_calls(request)) return;
  const bool once = !request.parallel_calls && format != ToolFormat::bare;
  const json::Value& tools = *fields_.find("tools");
  if (!once && !has_strict(tools) && answer.is_null()) return;
  const bool has_args = context_.tokenizer->id_of("[ARGS]").has_value();
  try {
    grammar_ =
        within("tools", [&] { return grammar_of_calls(tools, format, once, answer, has_args); });
  } catch (const UsageError&) {
    if (!lenient_ || !answer.is_null()) throw;
    say_not_held(request);
  }
}

void FormReader::read_tool_choice(Request& request) {
  request.parallel_calls = fields_.read_flag("parallel_tool_calls", true);
  const json::Value* tools = fields_.find("tools");
  const json::Value* choice = fields_.find("tool_choice");
  if (choice && !choice->is_null() && !choice->is_string() && !choice->is_object())
    throw FieldError(
        "tool_choice",
        fmt::format("expected tool_choice as text or an object, found {}", json::excerpt(*choice)));
  const std::string word = choice && choice->is_string() ? choice->as_string() : "auto";
  if (!tools || !tools->is_array() || tools->as_array().empty() || word == "none") {
    if (choice && !(choice->is_string() && (word == "none" || word == "auto")))
      throw FieldError("tool_choice", fmt::format("tool_choice {} needs \"tools\", found none",
                                                  json::excerpt(*choice)));
    return;
  }
  list_of(*tools, "tools", kMaxTools);
  grammar_of_call(*tools, "");  // refuses what is no tool
  request.tool_list = *tools;
  if (choice && choice->is_object()) {
    within("tool_choice", [&] { read_named_tool(*choice, request); });
  } else if (word == "required") {
    must_call(request, *tools);
  } else if (word == "auto") {
    request.tools = context_.tool_format;
    check_format(request, *tools);
  } else {
    throw FieldError(
        "tool_choice",
        fmt::format("expected tool_choice none, auto, required or a function, found {}",
                    json::excerpt(*choice)));
  }
}

void FormReader::read_named_tool(const json::Value& choice, Request& request) {
  const json::Value* function = choice.find("function");
  const json::Value* name = function ? function->find("name") : choice.find("name");
  if (!name) fail_usage("expected the name of a tool in {}", json::excerpt(choice));
  request.tool = text_of(*name, "the name of a tool");
  must_call(request, request.tool_list);
}

void FormReader::must_call(Request& request, const json::Value& tools) {
  const json::Value arguments = grammar_of_call(tools, request.tool);
  if (keeps_format(context_.tool_format)) {
    const bool once = !request.parallel_calls || !request.tool.empty();
    const json::Value called = strict_tools(tools, request.tool);
    try {
      grammar_ = grammar_of_calls(called, context_.tool_format, once, false);
      request.tools = context_.tool_format;
      request.tool_list = called;
      return;
    } catch (const UsageError&) {  // JSON can be held to what the format cannot
    }
  }
  request.tools = request.tool.empty() ? ToolFormat::object : ToolFormat::arguments;
  grammar_ = arguments;
}

void FormReader::check_format(Request& request, const json::Value& tools) const {
  const ToolFormat format = request.tools;
  const bool can_hold = format == ToolFormat::none || holds_calls(request);
  const bool is_held = !request.parallel_calls || has_strict(tools);
  if (!can_hold && is_held && lenient_) return say_not_held(request);
  if (!can_hold && is_held)
    fail_usage(
        "strict tools and parallel_tool_calls false are not held to where calls are written as "
        "{} writes them and the answer goes on with a message's words: ask for tool_choice "
        "required or a function, or leave continue_final_message out",
        name_of(format));
}

}  // namespace invar::openai
