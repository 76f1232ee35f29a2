#include "frontend/vllm_generate.h"

#include <algorithm>
#include <utility>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/expert_formats.h"
#include "frontend/foreign_fields.h"

namespace invar::rollout {

namespace {

constexpr size_t kLongestId = 256;

// Fields that would change an answer if they were understood.
constexpr openai::ForeignField kRefused[] = {{"features", "{}"},
                                             {"content_parts", "[]"},
                                             {"kv_transfer_params", "{}"},
                                             {"ec_transfer_params", "{}"}};
// Fields of the request that a completion has under the same name.
constexpr const char* kSame[] = {
    "model",    "stream",      "stream_options", "cache_salt",
    "priority", "logits_hash", "logprobs_mode",  "return_routed_experts"};
// Fields of sampling_params that say how an answer comes together, which its shape here says
// anyway.
constexpr std::string_view kIgnoredSampling[] = {
    "output_kind", "detokenize", "spaces_between_special_tokens", "skip_clone", "flat_logprobs"};

const json::Value& part_of(const json::Value& of, const char* name) {
  const json::Value* found = of.find(name);
  if (!found) fail("expected {} in an answer, found none", name);
  return *found;
}

bool is_given(const json::Value& of, const char* name) {
  const json::Value* found = of.find(name);
  return found && !found->is_null();
}

bool flag(const json::Value& body, const char* name) {
  if (!is_given(body, name)) return false;
  const json::Value& value = *body.find(name);
  if (!value.is_bool())
    fail_usage("expected {} as true or false, found {}", name, value.type_name());
  return value.as_bool();
}

std::string text(const json::Value& body, const char* name) {
  if (!is_given(body, name)) return {};
  const json::Value& value = *body.find(name);
  if (!value.is_string() || value.as_string().size() > kLongestId)
    fail_usage("expected {} as a text of at most {} bytes, found {}", name, kLongestId,
               json::excerpt(value));
  return value.as_string();
}

void read_sampling(const json::Value& params, json::Value& to) {
  for (const auto& [name, value] : params.as_object()) {
    if (value.is_null() || std::ranges::count(kIgnoredSampling, name)) continue;
    to.set(name, value);
  }
}

GenerateForm form_of(const json::Value& body, const json::Value& sampling) {
  GenerateForm form{.request_id = text(body, "request_id"),
                    .has_prompt = flag(body, "return_token_ids")};
  const std::string mode = text(body, "output_mode");
  if (!mode.empty() && mode != "tokens" && mode != "text")
    fail_usage("expected the output_mode tokens or text, found {}", json::quoted(mode));
  form.has_text = mode == "text";
  if (form.has_text && is_given(sampling, "detokenize") && !flag(sampling, "detokenize"))
    fail_usage("expected detokenize true beside the output_mode text, found false");
  return form;
}

}  // namespace

GenerateAsked asked_of_generate(const json::Value& body, int32_t context) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  openai::refuse_fields(body, kRefused);
  const json::Value none = json::Object{};
  const json::Value* ids = body.find("token_ids");
  if (!ids || !ids->is_array() || ids->as_array().empty() ||
      !first_of(ids->as_array()).is_integer())
    fail_usage("expected \"token_ids\" as a list of token ids, found {}",
               ids ? json::excerpt(*ids) : "none");
  const json::Value* sampling =
      is_given(body, "sampling_params") ? body.find("sampling_params") : &none;
  if (!sampling->is_object())
    fail_usage("expected sampling_params as an object, found {}", sampling->type_name());
  GenerateAsked asked{.form = form_of(body, *sampling)};
  asked.body =
      json::Object{{"return_token_ids", true},
                   {"return_tokens_as_token_ids", !asked.form.has_text},
                   {"max_tokens", std::max<int64_t>(1, context - std::ssize(ids->as_array()))}};
  read_sampling(*sampling, asked.body);
  for (const char* name : kSame)
    if (is_given(body, name)) asked.body.set(name, *body.find(name));
  asked.body.set("prompt", *ids);
  if (is_given(body, "weight_version"))
    asked.exact_version = exact_version_of(*body.find("weight_version"));
  return asked;
}

namespace {

constexpr std::string_view kIdMark = "token_id:";

// "token_id:5", or a text, of which only the caller may know the id.
json::Value logprob_of(const std::string& token, const json::Value& logprob, bool has_text) {
  json::Value entry = json::Object{{"token", token}, {"logprob", logprob}};
  if (has_text) {
    json::Array bytes;
    for (const char byte : token)
      bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
    entry.set("bytes", std::move(bytes));
  } else {
    entry.set("token_id", json::parse(token.substr(kIdMark.size()), "a token's id"));
    entry.set("bytes", nullptr);
  }
  return entry;
}

// A completion's four lists as a chat's entries, with ids beside: TRL and SkyRL read "token" as
// "token_id:5" and "logprob", vLLM's own clients "token_id".
json::Value logprobs_of(const GenerateForm& form, const json::Value& choice) {
  const json::Value* all = choice.find("logprobs");
  if (!all || all->is_null()) return {};
  const json::Array &tokens = part_of(*all, "tokens").as_array(),
                    &logprobs = part_of(*all, "token_logprobs").as_array(),
                    &tops = part_of(*all, "top_logprobs").as_array(),
                    &ids = part_of(choice, "token_ids").as_array();
  json::Array content;
  for (size_t i = 0; i < tokens.size(); ++i) {
    json::Value entry = logprob_of(tokens[i].as_string(), logprobs[i], form.has_text);
    if (i < ids.size()) entry.set("token_id", ids[i]);
    json::Array top;
    if (tops[i].is_object())
      for (const auto& [token, logprob] : tops[i].as_object())
        top.push_back(logprob_of(token, logprob, form.has_text));
    entry.set("top_logprobs", std::move(top));
    content.push_back(std::move(entry));
  }
  return json::Object{{"content", std::move(content)}};
}

json::Value choice_of(const GenerateForm& form, const json::Value& choice) {
  json::Value shown = json::Object{{"index", part_of(choice, "index")},
                                   {"finish_reason", part_of(choice, "finish_reason")},
                                   {"token_ids", part_of(choice, "token_ids")},
                                   {"logprobs", logprobs_of(form, choice)}};
  if (form.has_text) shown.set("text", part_of(choice, "text"));
  for (const char* name :
       {"stop_reason", "logits_hash", "seed", "weight_versions", "logprobs_mode"})
    if (const json::Value* found = choice.find(name)) shown.set(name, *found);
  if (choice.find("routed_experts") && form.routed_layers > 0) {
    const json::Array rows = expert_rows(choice);
    shown.set("routed_experts", form.nests_experts ? nested_experts(rows, form.routed_layers)
                                                   : npy_experts(rows, form.routed_layers));
  }
  return shown;
}

// The members beside the choices.
json::Value head_of(const GenerateForm& form, const json::Value& answer) {
  json::Value shown =
      json::Object{{"request_id",
                    form.request_id.empty() ? part_of(answer, "id") : json::Value(form.request_id)},
                   {"output_mode", form.has_text ? "text" : "tokens"}};
  for (const char* name : {"created", "model", "system_fingerprint", "seed", "usage"})
    if (const json::Value* found = answer.find(name)) shown.set(name, *found);
  shown.set("weight_version", form.weight_version);
  return shown;
}

}  // namespace

json::Value generate_answer(const GenerateForm& form, const json::Value& answer) {
  json::Value shown = head_of(form, answer);
  const json::Array& choices = part_of(answer, "choices").as_array();
  const json::Value& first = first_of(choices);
  if (form.has_prompt) shown.set("prompt_token_ids", part_of(first, "prompt_token_ids"));
  const json::Value* prompt = first.find("prompt_logprobs");
  shown.set("prompt_logprobs", prompt ? *prompt : json::Value());
  json::Array all;
  for (const json::Value& choice : choices) all.push_back(choice_of(form, choice));
  shown.set("choices", std::move(all));
  return shown;
}

json::Value generate_event(GenerateForm& form, const json::Value& event) {
  if (event.find("error")) return event;
  json::Value shown = head_of(form, event);
  json::Array all;
  for (const json::Value& choice : part_of(event, "choices").as_array()) {
    if (const json::Value* ids = choice.find("prompt_token_ids");
        ids && form.has_prompt && !std::exchange(form.has_begun, true))
      shown.set("prompt_token_ids", *ids);
    if (const json::Value* prompt = choice.find("prompt_logprobs"))
      shown.set("prompt_logprobs", *prompt);
    all.push_back(choice_of(form, choice));
  }
  shown.set("choices", std::move(all));
  return shown;
}

}  // namespace invar::rollout
