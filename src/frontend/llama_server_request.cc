#include <fmt/format.h>

#include <algorithm>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/body_fields.h"
#include "frontend/fill_in_middle.h"
#include "frontend/foreign_fields.h"
#include "frontend/llama_server.h"
#include "frontend/openai_sampling.h"
#include "frontend/request_limits.h"

namespace invar::llama_server {

namespace {

using openai::RequestWarnings;

// Read here, or by shown_of.
constexpr std::string_view kRead[] = {
    "prompt",          "n_predict",    "max_tokens",   "repeat_penalty", "repeat_last_n",
    "n_probs",         "logit_bias",   "json_schema",  "grammar",        "return_tokens",
    "response_fields", "input_prefix", "input_suffix", "input_extra"};
// Fields that no answer depends on here, so that they may be given in vain without a word: which
// slot, whether its cache is used, and how much of the timings is shown.
constexpr std::string_view kIdle[] = {"id_slot",           "cache_prompt",        "n_cache_reuse",
                                      "timings_per_token", "return_progress",     "nl_is_stop",
                                      "penalize_nl",       "post_sampling_probs", "n_indent"};
// Fields that would make an answer depend on the time.
constexpr std::string_view kTimes[] = {"t_max_predict_ms", "t_max_prompt_ms"};
constexpr size_t kMaxFiles = 256, kMaxFields = 64;

// [[id, bias], ...] or {"id": bias}; false is what excludes a token.
void read_logit_bias(const json::Value& bias, json::Value& made) {
  if (bias.is_object()) return made.set("logit_bias", bias);
  if (!bias.is_array()) fail_usage("expected logit_bias as a list, found {}", bias.type_name());
  if (bias.as_array().empty()) return;
  json::Value all = json::Object();
  for (const json::Value& pair : bias.as_array()) {
    const bool is_pair = pair.is_array() && pair.as_array().size() == 2;
    const json::Value* of = is_pair ? &pair.as_array()[1] : nullptr;
    const bool excludes = of && *of == json::Value(false);
    if (!is_pair || !pair.as_array()[0].to_integer() || !(excludes || of->is_number()))
      fail_usage("expected pairs of a token id and a number in logit_bias, found {}",
                 json::excerpt(pair));
    all.set(std::to_string(*pair.as_array()[0].to_integer()), excludes ? json::Value(-100) : *of);
  }
  made.set("logit_bias", std::move(all));
}

// Texts and token ids in turn, as one prompt.
json::Value mixed_prompt(const json::Array& parts, const openai::Context& context) {
  size_t bytes = 0;
  for (const json::Value& part : parts) bytes += part.is_string() ? part.as_string().size() : 0;
  if (bytes > context.max_prompt_bytes)
    throw openai::PromptTooLong(
        fmt::format("expected texts of at most {} bytes in a prompt, found {}",
                    context.max_prompt_bytes, bytes));
  json::Array ids;
  for (const json::Value& part : parts) {
    if (!part.is_string()) {
      ids.push_back(part);
      continue;
    }
    const bool is_first = &part == &first_of(parts);
    for (const int32_t id :
         context.tokenizer->encode(part.as_string(), {.add_special_tokens = is_first}))
      ids.emplace_back(int64_t{id});
  }
  return ids;
}

bool is_mixed(const json::Value& prompt) {
  if (!prompt.is_array()) return false;
  const auto& parts = prompt.as_array();
  return std::ranges::any_of(parts, &json::Value::is_string) &&
         std::ranges::any_of(parts, &json::Value::is_number);
}

json::Value prompt_of(const json::Value& body, const openai::Context& context) {
  const json::Value* prompt = body.find("prompt");
  if (!prompt || prompt->is_null()) fail_usage("expected \"prompt\" in the body of the request");
  if (is_mixed(*prompt)) return mixed_prompt(prompt->as_array(), context);
  if (!prompt->is_array()) return *prompt;
  json::Array all;
  for (const json::Value& one : prompt->as_array())
    all.push_back(is_mixed(one) ? mixed_prompt(one.as_array(), context) : one);
  return all;
}

// Below 0 the answer may fill the context.
void read_length(const BodyFields& fields, json::Value& made) {
  const json::Value* most = fields.find("n_predict");
  if (!most) most = fields.find("max_tokens");
  if (!most) return;
  const int64_t tokens = integer_of(*most, "n_predict", -2, INT32_MAX);
  if (tokens >= 0) made.set("max_tokens", std::max<int64_t>(tokens, 1));
}

// All but the prompt.
json::Value common_body(const json::Value& body, RequestWarnings& warnings) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  const BodyFields fields(body);
  json::Value made = json::Object();
  for (const auto& [name, value] : body.as_object()) {
    if (value.is_null() || among(name, kRead) || among(name, kIdle)) continue;
    if (among(name, kTimes))
      warnings.add(fmt::format("{} is not kept: an answer depends on its request alone", name));
    else
      made.set(name, value);
  }
  read_length(fields, made);
  openai::read_repeat_penalty(fields, made, warnings);
  if (const json::Value* bias = fields.find("logit_bias")) read_logit_bias(*bias, made);
  int32_t probabilities = 0;
  fields.read_integer("n_probs", probabilities, 0);
  if (probabilities > 0) made.set("logprobs", int64_t{probabilities});
  const json::Value* schema = fields.find("json_schema");
  if (schema && *schema != json::Value(json::Object())) made.set("guided_json", *schema);
  const json::Value* grammar = fields.find("grammar");
  if (grammar && *grammar != json::Value("")) made.set("guided_grammar", *grammar);
  return made;
}

std::vector<MiddleAsked::File> files_of(const json::Value& extra) {
  std::vector<MiddleAsked::File> files;
  for (const json::Value& one : list_of(extra, "files in input_extra", kMaxFiles)) {
    const BodyFields fields(one);
    const json::Value* text = one.is_object() ? fields.find("text") : nullptr;
    if (!text)
      fail_usage("expected files with a \"filename\" and a \"text\" in input_extra, found {}",
                 json::excerpt(one));
    const json::Value* name = fields.find("filename");
    files.push_back({name ? text_of(*name, "filename") : "tmp", text_of(*text, "text")});
  }
  return files;
}

}  // namespace

json::Value completion_body_of(const json::Value& body, const openai::Context& context,
                               RequestWarnings& warnings) {
  json::Value made = common_body(body, warnings);
  made.set("prompt", prompt_of(body, context));
  return made;
}

json::Value infill_body_of(const json::Value& body, const openai::Context& context,
                           RequestWarnings& warnings) {
  json::Value made = common_body(body, warnings);
  const BodyFields fields(body);
  const auto text = [&](const char* name) {
    const json::Value* found = fields.find(name);
    return found ? text_of(*found, name) : std::string();
  };
  for (const char* name : {"input_prefix", "input_suffix"})
    if (!fields.find(name)) fail_usage("expected \"{}\" in the body of the request", name);
  MiddleAsked asked{.prefix = text("input_prefix"),
                    .suffix = text("input_suffix"),
                    .begun = text("prompt"),
                    .files = {}};
  if (const json::Value* extra = fields.find("input_extra")) asked.files = files_of(*extra);
  made.set("prompt", middle_prompt(context, asked));
  return made;
}

Shown shown_of(const json::Value& body) {
  const BodyFields fields(body);
  const json::Value* most = fields.find("n_predict");
  Shown shown{.computes_nothing = most && *most == json::Value(0),
              .token_ids = fields.read_flag("return_tokens", false),
              .fields = {}};
  if (const json::Value* names = fields.find("response_fields"))
    for (const json::Value& name : list_of(*names, "names in response_fields", kMaxFields))
      shown.fields.push_back(text_of(name, "a name in response_fields", 256));
  return shown;
}

}  // namespace invar::llama_server
