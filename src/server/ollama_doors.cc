// Ollama's endpoints but for what makes an answer: the model as its clients see it, and vectors.
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>

#include "api.h"
#include "base/ends.h"
#include "base/error.h"
#include "embedding.h"
#include "engine/pooled_vector.h"
#include "errors.h"
#include "frontend/body_fields.h"
#include "frontend/fill_in_middle.h"
#include "frontend/ollama.h"

namespace invar::server {

namespace {

constexpr size_t kLongestOfLoading = 4096;  // bytes of a body that may ask for no answer

// "596.0M", "7.6B"
std::string count_text(int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  return parameters < 1'000'000'000 ? fmt::format("{:.1f}M", count / 1e6)
                                    : fmt::format("{:.1f}B", count / 1e9);
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

json::Value details_of(const ModelCard& card) {
  return json::Object{{"parent_model", ""},
                      {"format", card.format},
                      {"family", card.family},
                      {"families", json::Array{card.family}},
                      {"parameter_size", count_text(card.parameters)},
                      {"quantization_level", upper(card.weights)}};
}

json::Value model_info_of(const ModelCard& card, const BackendFacts& facts) {
  json::Value info = json::Object{{"general.architecture", card.family},
                                  {"general.parameter_count", card.parameters}};
  const auto add = [&](const char* name, int64_t value) {
    info.set(card.family + "." + name, value);
  };
  add("context_length", facts.max_model_len);
  add("block_count", card.layers);
  add("embedding_length", card.hidden);
  add("attention.head_count", card.heads);
  add("attention.head_count_kv", card.kv_heads);
  add("vocab_size", facts.vocab);
  return info;
}

// As a Modelfile has them, a line each.
std::string parameters_of(const SamplingParams& p, const BackendFacts& facts) {
  return fmt::format("num_ctx {}\ntemperature {}\ntop_k {}\ntop_p {}\nmin_p {}",
                     facts.max_model_len, p.temperature, p.top_k, p.top_p, p.min_p);
}

// The chat template. Editors (Continue) look for the word .Suffix, as a template of Ollama's has
// it, to know whether a model fills in the text between two others.
std::string template_of(const ServedModel& model) {
  std::string text = model.chat ? model.chat->source() : std::string();
  if (model.numbers.has_head && fills_in_middle(*model.tokenizer)) text += "{# .Prompt .Suffix #}";
  return text;
}

// The name that a body asks for, under either of Ollama's names for it.
std::string asked_name(const json::Value& body) {
  const BodyFields fields(body);
  for (const char* field : {"model", "name"})
    if (const json::Value* name = body.is_object() ? fields.find(field) : nullptr)
      return ollama::name_without_tag(text_of(*name, field));
  fail_usage("expected \"model\" in the body of the request");
}

// One text or several, and their vectors.
std::string vectors_body(const Numbers& vectors, bool is_one, std::optional<int32_t> size,
                         const std::string& model, int64_t tokens) {
  json::Array all;
  for (const std::vector<float>& vector : vectors) {
    json::Array numbers;
    for (const float number : shown_vector(vector, size, !is_one))
      numbers.emplace_back(static_cast<double>(number));
    all.push_back(std::move(numbers));
  }
  if (is_one) return json::dump(json::Object{{"embedding", std::move(first_of(all))}});
  return json::dump(json::Object{{"model", ollama::name_with_tag(model)},
                                 {"embeddings", std::move(all)},
                                 {"prompt_eval_count", tokens}});
}

}  // namespace

// A body without a prompt loads the model, which is loaded.
void Server::ollama_answer(std::shared_ptr<Exchange> exchange) {
  if (exchange->request.body.size() > kLongestOfLoading) return answer(std::move(exchange));
  const auto slots = take_slot(*exchange);
  offer(reading(exchange->request), [this, exchange, slots] {
    guarded(exchange, [&] {
      const bool is_chat = exchange->request.path == "/api/chat";
      const json::Value body = parse_body(exchange->request.body);
      const bool loads = ollama::only_loads(body, is_chat);
      const auto reply = std::make_shared<HttpReply>();
      if (loads) {
        admission_.check_model(asked_name(body));
        reply->body = json::dump(
            ollama::loaded_body(body, is_chat, static_cast<int64_t>(std::time(nullptr))));
      }
      http_.post([this, exchange, slots, reply, loads] {
        if (loads) return exchange->reply(std::move(*reply));
        with_weights([=, this](const WeightsLease& lease) { answer_with(exchange, slots, lease); });
      });
    });
  });
}

json::Value Server::ollama_model(const std::string& name) const {
  const BackendFacts facts = backend_.facts();
  return json::Object{{"name", ollama::name_with_tag(name)},
                      {"model", ollama::name_with_tag(name)},
                      {"modified_at", ollama::time_text(started_)},
                      {"size", model_.card.bytes},
                      {"digest", to_hex(facts.weights)},
                      {"details", details_of(model_.card)}};
}

// Names in which a * stands are none to choose.
void Server::ollama_tags(std::shared_ptr<Exchange> exchange) {
  json::Array models;
  for (const std::string& name : model_.names)
    if (name.find('*') == name.npos) models.push_back(ollama_model(name));
  exchange->reply({.body = json::dump(json::Object{{"models", std::move(models)}})});
}

void Server::ollama_ps(std::shared_ptr<Exchange> exchange) {
  const BackendFacts facts = backend_.facts();
  json::Value model = ollama_model(first_of(model_.names));
  const bool is_on_gpu = facts.instruction_set == "cuda";
  model.set("size_vram", is_on_gpu ? model_.card.bytes : int64_t{0});
  model.set("context_length", facts.max_model_len);
  model.set("expires_at", "2318-04-11T00:00:00Z");  // Ollama's word for never
  exchange->reply({.body = json::dump(json::Object{{"models", json::Array{std::move(model)}}})});
}

void Server::ollama_show(std::shared_ptr<Exchange> exchange) {
  guarded(exchange, [&] {
    const json::Value asked = parse_body(exchange->request.body);
    const std::string name = asked_name(asked);
    admission_.check_model(name);
    const BackendFacts facts = backend_.facts();
    json::Array capabilities;
    for (const std::string& one : capabilities_of(model_)) capabilities.emplace_back(one);
    exchange->reply(
        {.body = json::dump(json::Object{{"modelfile", "FROM " + first_of(model_.names)},
                                         {"parameters", parameters_of(model_.defaults, facts)},
                                         {"template", template_of(model_)},
                                         {"details", details_of(model_.card)},
                                         {"model_info", model_info_of(model_.card, facts)},
                                         {"capabilities", std::move(capabilities)},
                                         {"modified_at", ollama::time_text(started_)}})});
  });
}

void Server::ollama_version(std::shared_ptr<Exchange> exchange) {
  exchange->reply(
      {.body = json::dump(json::Object{{"version", ollama::kVersion}, {"invar", INVAR_VERSION}})});
}

void Server::ollama_embed(std::shared_ptr<Exchange> exchange) {
  ask_with_slot(exchange, [=, this](const auto& slots, const WeightsLease& lease) {
    openai::RequestWarnings warnings;
    NumbersAsked asked = ollama_vectors_asked(exchange->request, warnings);
    warn(*exchange, warnings);
    take_places(*slots, asked.requests, asked.bytes);
    const auto body = [body = asked.body](const Numbers& vectors) { return body(vectors, {}); };
    embed(std::make_shared<Embedding>(std::move(asked.requests), body, exchange, slots, lease));
  });
}

// POST /api/embed, and /api/embeddings of one text, whose vector is as long as it comes.
NumbersAsked Server::ollama_vectors_asked(const HttpRequest& request,
                                          openai::RequestWarnings& warnings) const {
  const json::Value body = parse_body(request.body);
  const bool is_one = request.path == "/api/embeddings";
  const std::string name = asked_name(body);
  json::Value asked_body = ollama::embed_body_of(body, is_one, warnings);
  asked_body.set("model", name);
  NumbersAsked asked;
  int64_t tokens = 0;
  const QuestionTexts texts = admission_.question_texts(options_.keys.owner(request), started_);
  for (auto& text :
       embedded_texts(asked_body, texts, ollama::cuts_texts(body) ? &warnings : nullptr)) {
    tokens += std::ssize(text);
    asked.requests.push_back({.prompt = std::move(text), .hash_logits = false, .pooled = true});
  }
  if (model_.numbers.relevance == Relevance::cross)
    fail_usage("the model is a cross-encoder, whose scores of pairs are no embeddings");
  if (is_one && asked.requests.size() != 1)
    fail_usage("expected one text as \"prompt\", found {}", asked.requests.size());
  asked.bytes = vectors_bytes(asked.requests, texts.vector_size, false);
  asked.body = [=, size = dimensions_of(asked_body, texts)](const Numbers& vectors,
                                                            const NumbersHead&) {
    return vectors_body(vectors, is_one, size, name, tokens);
  };
  return asked;
}

// Which models there are is said when the server starts.
void Server::refuse_library(std::shared_ptr<Exchange> exchange) {
  throw ApiError{400, fmt::format("expected one of the models that are served ({}), found a "
                                  "request to {}: models are fetched by invar pull, and named "
                                  "when the server starts",
                                  fmt::join(model_.names, ", "), exchange->request.path)};
}

std::vector<std::string> capabilities_of(const ServedModel& model) {
  std::vector<std::string> all;
  if (model.numbers.has_head) all.emplace_back("completion");
  if (model.numbers.has_head && model.chat && model.tool_format != ToolFormat::none)
    all.emplace_back("tools");
  if (model.thought_format != ThoughtFormat::none) all.emplace_back("thinking");
  if (model.numbers.has_head && fills_in_middle(*model.tokenizer)) all.emplace_back("insert");
  if (!model.numbers.has_head || model.numbers.relevance == Relevance::cosine)
    all.emplace_back("embedding");
  return all;
}

}  // namespace invar::server
