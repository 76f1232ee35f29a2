#include "frontend/rollout_formats.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/body_fields.h"
#include "frontend/expert_formats.h"
#include "frontend/foreign_fields.h"
#include "frontend/openai_form.h"
#include "frontend/openai_sampling.h"

namespace invar::rollout {

namespace {

// A name of the other form, and its name here.
struct Renamed {
  std::string_view from;
  const char* to;
};

constexpr Renamed kSglangSampling[] = {{"max_new_tokens", "max_tokens"},
                                       {"min_new_tokens", "min_tokens"},
                                       {"sampling_seed", "seed"},
                                       {"no_stop_trim", "include_stop_str_in_output"},
                                       {"temperature", "temperature"},
                                       {"top_p", "top_p"},
                                       {"top_k", "top_k"},
                                       {"min_p", "min_p"},
                                       {"stop", "stop"},
                                       {"stop_token_ids", "stop_token_ids"},
                                       {"ignore_eos", "ignore_eos"},
                                       {"skip_special_tokens", "skip_special_tokens"},
                                       {"frequency_penalty", "frequency_penalty"},
                                       {"presence_penalty", "presence_penalty"},
                                       {"repetition_penalty", "repetition_penalty"},
                                       {"logit_bias", "logit_bias"},
                                       {"n", "n"}};
// Names that ask for nothing here: what they could change is as they say anyway, or has no meaning.
constexpr std::string_view kSglangIgnored[] = {"spaces_between_special_tokens", "rid", "stream",
                                               "return_text_in_logprobs"};
// Names that would change the answer. Where they ask for nothing they may be given.
constexpr openai::ForeignField kSglangRefused[] = {
    {"image_data", "[]|\"\""},        {"audio_data", "[]|\"\""}, {"video_data", "[]|\"\""},
    {"lora_path", "[]|\"\""},         {"session_params", "{}"},  {"custom_params", "{}"},
    {"return_hidden_states", "false"}};
// The log-probabilities that these stacks' engines give and their trainers compute again. SGLang's
// are of the logits by the temperature, before top-p, top-k and min-p; TRL's of the sampled row.
constexpr const char *kSglangLogprobs = "scaled_logprobs", *kTrlLogprobs = "processed_logprobs";
constexpr openai::ForeignField kTrlRefused[] = {{"images", "[]"}};
constexpr Renamed kTrlFields[] = {{"n", "n"},
                                  {"repetition_penalty", "repetition_penalty"},
                                  {"temperature", "temperature"},
                                  {"top_p", "top_p"},
                                  {"top_k", "top_k"},
                                  {"min_p", "min_p"},
                                  {"max_tokens", "max_tokens"}};

const char* renamed(std::span<const Renamed> names, std::string_view name) {
  for (const Renamed& one : names)
    if (one.from == name) return one.to;
  return nullptr;
}

bool is_ignored(std::string_view name) {
  if (openai::find_field(kSglangRefused, name)) return true;
  for (const std::string_view one : kSglangIgnored)
    if (one == name) return true;
  return false;
}

const json::Value& member(const json::Value& of, const char* name) {
  const json::Value* found = of.find(name);
  if (!found) fail("expected {} in an answer, found none", name);
  return *found;
}

// Beside what stands there already, which has to agree with it.
void add_structured(const char* kind, const json::Value& form, json::Value& body) {
  const json::Value* found = body.find("structured_outputs");
  json::Value all = found ? *found : json::Value();
  openai::add_form(kind, form, all);
  body.set("structured_outputs", std::move(all));
}

void read_sglang_sampling(const json::Value& params, json::Value& body) {
  if (!params.is_object())
    fail_usage("expected sampling_params as an object, found {}", params.type_name());
  openai::refuse_fields(params, kSglangRefused);
  body.set("max_tokens", 128);
  for (const auto& [name, value] : params.as_object()) {
    if (value.is_null() || is_ignored(name)) continue;
    if (const char* to = renamed(kSglangSampling, name))
      body.set(to, value);
    else if (name == "json_schema")
      add_structured("json", value, body);
    else if (name == "regex")
      add_structured("regex", value, body);
    else
      fail_usage("sampling_params has {}, which is not supported", json::quoted(name));
  }
}

// Whether it is a list of prompts and no prompt itself.
bool is_batch(const json::Value& prompt) {
  return prompt.is_array() && !prompt.as_array().empty() &&
         !first_of(prompt.as_array()).is_integer();
}

int64_t count_of(const json::Value& list) {
  return std::ssize(list.as_array());
}

// [[log-probability, token, null], ...] of the answer's tokens.
json::Array pairs_of(const json::Value& choice) {
  const json::Array& ids = member(choice, "token_ids").as_array();
  const json::Array& logprobs = member(member(choice, "logprobs"), "token_logprobs").as_array();
  if (ids.size() != logprobs.size())
    fail("expected a log-probability for each of {} tokens, found {}", ids.size(), logprobs.size());
  json::Array pairs;
  for (size_t i = 0; i < ids.size(); ++i)
    pairs.push_back(json::Array{logprobs[i], ids[i], nullptr});
  return pairs;
}

// The likeliest tokens in each place, as pairs_of has them. `choice`: shows tokens by their
// ids.
json::Array top_pairs_of(const json::Value& choice) {
  constexpr std::string_view kId = "token_id:";
  json::Array all;
  for (const json::Value& token : member(member(choice, "logprobs"), "top_logprobs").as_array()) {
    json::Array pairs;
    for (const auto& [name, logprob] : token.as_object())
      pairs.push_back(json::Array{logprob, std::stoi(name.substr(kId.size())), nullptr});
    all.push_back(std::move(pairs));
  }
  return all;
}

// The choice's own where there are several prompts.
const json::Value& seed_of(const json::Value& choice, const json::Value& answer) {
  const json::Value* own = choice.find("seed");
  return own ? *own : member(answer, "seed");
}

json::Value sglang_finish(const json::Value& choice, int64_t tokens) {
  const json::Value& reason = member(choice, "finish_reason");
  json::Value finish = json::Object{{"type", reason}};
  if (reason == json::Value("length")) finish.set("length", tokens);
  if (reason == json::Value("abort")) finish.set("message", "the answer was ended before its time");
  const json::Value* stop = choice.find("stop_reason");
  if (reason == json::Value("stop"))
    finish.set("matched",
               stop && !stop->is_null() ? *stop : last_of(member(choice, "token_ids").as_array()));
  return finish;
}

// The number of answers to each prompt. Another value is refused where the body is read.
size_t answers_of(const json::Value& body) {
  const json::Value* n = body.find("n");
  const int64_t answers = n ? n->to_integer().value_or(1) : 1;
  return answers > 1 ? static_cast<size_t>(answers) : 1;
}

}  // namespace

json::Value exact_version_of(const json::Value& asked) {
  const json::Value* version = asked.is_object() ? asked.find("exact_version") : &asked;
  if (!version || (!version->is_string() && !version->is_integer()))
    fail_usage("expected weight_version as {{\"exact_version\": TEXT}}, found {}",
               json::excerpt(asked));
  return version->is_integer() ? json::Value(json::dump(*version)) : *version;
}

Asked asked_of_sglang(const json::Value& body) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  openai::refuse_fields(body, kSglangRefused);
  Asked asked{.body = json::Object{{"return_token_ids", true},
                                   {"logits_hash", true},
                                   {"logprobs_mode", kSglangLogprobs}}};
  const json::Value none = json::Object{};
  const json::Value *prompt = nullptr, *sampling = &none;
  for (const auto& [name, value] : body.as_object()) {
    if (value.is_null()) continue;
    if (name == "input_ids" && !value.is_array())
      fail_usage("expected input_ids as a list, found {}", value.type_name());
    else if (name == "input_ids" || name == "text") {
      if (std::exchange(prompt, &value))
        fail_usage("expected one of \"input_ids\" and \"text\", found both");
    } else if (name == "sampling_params")
      sampling = &value;
    else if (name == "logprobs_mode" || name == "return_routed_experts")
      asked.body.set(name, value);
    else if (name == "return_logprob")
      asked.shown.has_logprobs = value.as_bool();
    else if (name == "weight_version")
      asked.exact_version = exact_version_of(value);
    else if (name == "top_logprobs_num")
      asked.shown.top = static_cast<size_t>(std::max<int64_t>(0, value.as_integer()));
    else if (name == "logprob_start_len") {
      if (value.as_integer() > -1)
        fail_usage("expected logprob_start_len of -1, found {}: ask /v1/completions for more",
                   value.as_integer());
    } else if (!is_ignored(name)) {
      fail_usage("the request has {}, which is not supported", json::quoted(name));
    } else if (name == "stream" && value.as_bool()) {
      fail_usage("expected \"stream\": false, found true: ask /v1/completions for a stream");
    }
  }
  if (!prompt) fail_usage("expected \"input_ids\" or \"text\", found neither");
  asked.body.set("prompt", *prompt);
  asked.shown.is_batch = is_batch(*prompt);
  read_sglang_sampling(*sampling, asked.body);
  if (asked.shown.top > 0 && !asked.shown.has_logprobs)
    fail_usage("expected \"return_logprob\": true beside top_logprobs_num, found none");
  if (asked.shown.has_logprobs) asked.body.set("logprobs", static_cast<int64_t>(asked.shown.top));
  if (asked.shown.top > 0) asked.body.set("return_tokens_as_token_ids", true);
  asked.shown.per_prompt = answers_of(asked.body);
  asked.shown.is_list = asked.shown.is_batch || asked.shown.per_prompt > 1;
  return asked;
}

namespace {

// The cached tokens of the only prompt; 0 of several, whose usage is one number.
int64_t cached_of(const Shown& shown, const json::Value& answer) {
  const json::Value* details = member(answer, "usage").find("prompt_tokens_details");
  return details && !shown.is_batch ? member(*details, "cached_tokens").as_integer() : 0;
}

}  // namespace

json::Value sglang_answer(const Shown& shown, const json::Value& answer,
                          const std::string& weight_version) {
  json::Array all;
  for (const json::Value& choice : member(answer, "choices").as_array()) {
    const json::Value& ids = member(choice, "token_ids");
    json::Value meta = json::Object{{"id", member(answer, "id")},
                                    {"finish_reason", sglang_finish(choice, count_of(ids))},
                                    {"prompt_tokens", count_of(member(choice, "prompt_token_ids"))},
                                    {"completion_tokens", count_of(ids)},
                                    {"cached_tokens", cached_of(shown, answer)},
                                    {"weight_version", weight_version},
                                    {"system_fingerprint", member(answer, "system_fingerprint")},
                                    {"logits_hash", member(choice, "logits_hash")},
                                    {"sampling_seed", seed_of(choice, answer)}};
    if (const json::Value* versions = choice.find("weight_versions")) {
      meta.set("weight_version", member(last_of(versions->as_array()), "weight_version"));
      meta.set("weight_versions", *versions);
    }
    if (shown.has_logprobs) meta.set("output_token_logprobs", pairs_of(choice));
    if (shown.top > 0) meta.set("output_top_logprobs", top_pairs_of(choice));
    if (choice.find("routed_experts"))
      meta.set("routed_experts", packed_experts(expert_rows(choice)));
    all.push_back(json::Object{
        {"text", member(choice, "text")}, {"output_ids", ids}, {"meta_info", std::move(meta)}});
  }
  return shown.is_list ? json::Value(std::move(all)) : first_of(all);
}

Asked asked_of_trl(const json::Value& body) {
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  openai::refuse_fields(body, kTrlRefused);
  Asked asked{.body = json::Object{{"return_token_ids", true},
                                   {"max_tokens", 16},
                                   {"logprobs_mode", kTrlLogprobs}},
              .shown = {.is_list = true, .is_batch = true, .has_logprobs = true}};
  const json::Value* prompts = nullptr;
  for (const auto& [name, value] : body.as_object()) {
    if (value.is_null()) continue;
    if (name == "prompts")
      prompts = &value;
    else if (const char* to = renamed(kTrlFields, name))
      asked.body.set(to, value);
    else if (name == "structured_outputs_regex" || name == "guided_decoding_regex")
      add_structured("regex", value, asked.body);
    else if (name == "generation_kwargs") {
      if (!value.is_object())
        fail_usage("expected generation_kwargs as an object, found {}", json::excerpt(value));
      for (const auto& [kwarg, wanted] : value.as_object()) {
        if (!openai::is_sampling_field(kwarg))
          fail_usage("expected fields of sampling in generation_kwargs, found {}",
                     json::quoted(kwarg));
        asked.body.set(kwarg, wanted);
      }
    } else if (name == "logprobs") {
      if (value.as_integer() != 0)
        fail_usage("expected logprobs of 0 or null, found {}: ask /v1/completions for more",
                   value.as_integer());
    } else if (!openai::find_field(kTrlRefused, name)) {
      fail_usage("the request has {}, which is not supported", json::quoted(name));
    }
  }
  if (!prompts || !prompts->is_array() || prompts->as_array().empty())
    fail_usage("expected \"prompts\" as a list of texts or of token ids");
  asked.body.set("prompt", *prompts);
  asked.body.set("logprobs", 0);
  asked.shown.per_prompt = answers_of(asked.body);
  return asked;
}

json::Value trl_answer(const Shown& shown, const json::Value& answer,
                       const std::string& weight_version) {
  json::Array prompts, completions, logprobs, ids, seeds;
  const json::Array& choices = member(answer, "choices").as_array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const json::Value& choice = choices[i];
    if (i % shown.per_prompt == 0) prompts.push_back(member(choice, "prompt_token_ids"));
    completions.push_back(member(choice, "token_ids"));
    seeds.push_back(seed_of(choice, answer));
    json::Array each, tokens;
    for (const json::Value& pair : pairs_of(choice)) {
      each.push_back(json::Array{pair.as_array()[0]});
      tokens.push_back(json::Array{pair.as_array()[1]});
    }
    logprobs.push_back(std::move(each));
    ids.push_back(std::move(tokens));
  }
  return json::Object{
      {"prompt_ids", std::move(prompts)}, {"completion_ids", std::move(completions)},
      {"logprobs", std::move(logprobs)},  {"logprob_token_ids", std::move(ids)},
      {"seeds", std::move(seeds)},        {"weight_version", weight_version}};
}

}  // namespace invar::rollout
