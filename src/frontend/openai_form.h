// A request's fields say what form its answer is held to. Throws UsageError with the field's name.
#pragma once

#include "frontend/body_fields.h"
#include "frontend/openai.h"

namespace invar::openai {

// Adds a form of a kind that ConstraintCompiler knows to `what`, an object or null. Throws
// UsageError where another form of that kind is there; two kinds are refused when they are
// compiled.
void add_form(const std::string& kind, const json::Value& form, json::Value& what);

class FormReader {
 public:
  // `lenient`: what cannot be held to is a warning where the answer makes sense without it. The
  // other two outlive this.
  FormReader(const BodyFields& fields, const Context& context, bool lenient)
      : fields_(fields), context_(context), lenient_(lenient) {}

  // "none", "auto", "required" or {"type": "function", "function": {"name": ...}}
  void read_tool_choice(Request& request);
  // OpenAI's response_format, or vLLM's structured_outputs and guided_*, but one of them; behind
  // the tools.
  void read_form(Request& request);

 private:
  // A field that asks for a form; `field` becomes its name.
  const json::Value* form_in(const std::string& name, std::string& field) const;
  // An answer that may have calls among its text, where it matters which: of strict tools, or not
  // more than one where the format can have several. `answer`: null, or the schema of an answer
  // without calls.
  void hold_calls(Request& request, const json::Value& answer = {});
  // The answer must be a call of the request's tool, or of one of them where it names none: as the
  // model writes calls, or JSON alone.
  void must_call(Request& request, const json::Value& tools);
  void read_named_tool(const json::Value& choice, Request& request);
  // Strict tools and one call alone are held to grammars, of the formats that have one.
  void check_format(Request& request, const json::Value& tools) const;

  const BodyFields& fields_;
  const Context& context_;
  const bool lenient_;
  json::Value grammar_;  // what the answer is held to, for ConstraintCompiler; or null
};

}  // namespace invar::openai
