// llama.cpp's endpoints but for what makes an answer, and what evaluations ask of a tokenizer.
#include <fmt/format.h>

#include <algorithm>

#include "api.h"
#include "base/ends.h"
#include "base/error.h"
#include "errors.h"

namespace invar::server {

namespace {

json::Value token_or_null(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? json::Value(tokenizer.token_text(*id)) : json::Value();
}

constexpr int32_t kMostSlotsShown = 1024;

// Answers that are computed at the same time, where so many are let in.
int32_t slots_of(const BackendStats& stats, const ServerOptions& options) {
  return static_cast<int32_t>(std::min(options.max_queued, static_cast<size_t>(stats.max_running)));
}

}  // namespace

// GET /props: the model, and what a request that says nothing is sampled with.
void Server::props(std::shared_ptr<Exchange> exchange) {
  const BackendFacts facts = backend_.facts();
  const SamplingParams& p = model_.defaults;
  const Tokenizer& tokenizer = *model_.tokenizer;
  json::Value settings =
      json::Object{{"n_ctx", facts.max_model_len},
                   {"params", json::Object{{"temperature", p.temperature},
                                           {"top_k", p.top_k},
                                           {"top_p", p.top_p},
                                           {"min_p", p.min_p},
                                           {"repeat_penalty", p.repetition_penalty},
                                           {"presence_penalty", p.presence_penalty},
                                           {"frequency_penalty", p.frequency_penalty}}}};
  exchange->reply({.body = json::dump(json::Object{
                       {"default_generation_settings", std::move(settings)},
                       {"total_slots", slots_of(backend_.stats(), options_)},
                       {"model_alias", first_of(model_.names)},
                       {"model_path", first_of(model_.names)},
                       {"modalities", json::Object{{"vision", false}, {"audio", false}}},
                       {"chat_template", model_.chat ? model_.chat->source() : std::string()},
                       {"bos_token", token_or_null(tokenizer, tokenizer.bos_id())},
                       {"eos_token", token_or_null(tokenizer, tokenizer.eos_id())},
                       {"build_info", std::string("invar-") + INVAR_VERSION}})});
}

// GET /slots: places for answers. They are alike: those that compute come first.
void Server::slots_in_use(std::shared_ptr<Exchange> exchange) {
  const int32_t context = backend_.facts().max_model_len;
  const BackendStats stats = backend_.stats();
  json::Array all;
  for (int32_t i = 0; i < std::min(slots_of(stats, options_), kMostSlotsShown); ++i)
    all.push_back(
        json::Object{{"id", i}, {"n_ctx", context}, {"is_processing", i < stats.running}});
  exchange->reply({.body = json::dump(all)});
}

// POST /apply-template: the text of a chat's prompt.
void Server::apply_template(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  reply_with_tokens(exchange, [this, &request]() -> json::Value {
    const json::Value shown = admission_.render("/v1/chat/completions", parse_body(request.body));
    return json::Object{{"prompt", *shown.find("prompt")}};
  });
}

// GET /tokenizer_info: what lm-eval's remote tokenizer needs beside /tokenize, as vLLM has it.
void Server::tokenizer_info(std::shared_ptr<Exchange> exchange) {
  const Tokenizer& tokenizer = *model_.tokenizer;
  const json::Value eos = token_or_null(tokenizer, tokenizer.eos_id());
  exchange->reply(
      {.body = json::dump(json::Object{
           {"tokenizer_class", "PreTrainedTokenizerFast"},
           {"name_or_path", first_of(model_.names)},
           {"model_max_length", backend_.facts().max_model_len},
           {"vocab_size", tokenizer.vocab_size()},
           {"bos_token", token_or_null(tokenizer, tokenizer.bos_id())},
           {"eos_token", eos},
           {"pad_token", eos},
           {"chat_template", model_.chat ? json::Value(model_.chat->source()) : json::Value()}})});
}

}  // namespace invar::server
