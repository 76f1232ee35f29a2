// Any bytes as a chat template, rendered with a small conversation: a text or an Error.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "frontend/jinja/template.h"
#include "tokenizer/utf8.h"

using namespace invar;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const jinja::Value kMessages = jinja::Value::from_json(json::parse(
      R"([{"role": "system", "content": " caf\u00e9 "}, {"role": "user", "content": "1 <b>"},
          {"role": "assistant", "content": "<think>a</think>b", "tool_calls":
           [{"id": "abcdefghi", "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true]}}}]}])",
      "fuzz"));
  std::string source;
  utf8::append_repaired(source, {reinterpret_cast<const char*>(data), size});
  const jinja::Variables variables = {{"messages", kMessages},
                                      {"bos_token", "<s>"},
                                      {"eos_token", "</s>"},
                                      {"add_generation_prompt", true},
                                      {"tools", jinja::Value::list({})}};
  const jinja::RenderOptions options{
      .limits = {.steps = 20'000, .text_bytes = 1 << 20, .output_bytes = 1 << 20, .depth = 200},
      .clock = [] { return std::tm{.tm_mday = 1, .tm_year = 124}; }};
  try {
    jinja::Template(source, "fuzz").render(variables, options);
  } catch (const Error&) {
  }
  return 0;
}
