// The server before several models says itself which there are and how they are.
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/ends.h"
#include "exposition.h"
#include "frontend/ollama.h"
#include "models_front_impl.h"
#include "query.h"

namespace invar::server {

namespace asio = boost::asio;

namespace {

constexpr std::string_view kModels = "/v1/models/", kTags = "/api/tags", kLoaded = "/api/ps";

HttpReply json_reply(json::Value body) {
  return {.body = json::dump(body)};
}

bool is_pattern(const std::string& name) {
  return name.find('*') != name.npos;
}

const char* state_name(ModelRoom::State state) {
  switch (state) {
    case ModelRoom::State::unloaded:
      return "unloaded";
    case ModelRoom::State::loading:
      return "loading";
    case ModelRoom::State::loaded:
      return "loaded";
    case ModelRoom::State::ending:
      return "unloading";
  }
  return "";
}

}  // namespace

bool ModelsFront::Impl::answers_itself(const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request;
  const std::string& path = request.path;
  const auto is = [&](std::initializer_list<std::string_view> paths) {
    return std::ranges::find(paths, path) != paths.end();
  };
  if (is({"/health", "/ping", "/health/", "/health_generate"})) {
    exchange->reply({.type = "text/plain"});
  } else if (is({"/", "/docs", "/openapi.json"}) || path.starts_with("/page/")) {
    exchange->reply(Server::page_at(path));
  } else if (path == "/version") {
    exchange->reply(json_reply(json::Object{{"version", INVAR_VERSION}}));
  } else if (path == "/api/version") {
    exchange->reply(
        json_reply(json::Object{{"version", ollama::kVersion}, {"invar", INVAR_VERSION}}));
  } else if (path == "/load") {
    exchange->reply(json_reply(json::Object{{"server_load", static_cast<int64_t>(active)}}));
  } else if (path == "/metrics") {
    exchange->reply({.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_text()});
  } else if (is({"/v1/models", kTags, kLoaded})) {
    asio::co_spawn(loop, list(exchange), asio::detached);
  } else if (path.starts_with(kModels)) {
    show_model(exchange, unescaped(path.substr(kModels.size())));
  } else if (is({"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"})) {
    throw ApiError{400, fmt::format("expected one of the models that are served ({}), found a "
                                    "request to {}: models are fetched by invar pull, and named "
                                    "when the server starts",
                                    all_names(), path)};
  } else {
    return false;
  }
  return true;
}

void ModelsFront::Impl::show_model(const ExchangePtr& exchange, const std::string& name) {
  const size_t model = find(name);
  if (is_running(model)) {
    asio::co_spawn(loop, show_loaded(exchange, model), asio::detached);
    return;
  }
  json::Value object = unloaded_object(model, name);
  set_status(object, model);
  exchange->reply(json_reply(std::move(object)));
}

// The reply of the model's own server; nothing where it has none.
asio::awaitable<std::optional<json::Value>> ModelsFront::Impl::asked(const HttpRequest& request,
                                                                     size_t model) {
  if (!is_running(model)) co_return std::nullopt;
  const std::string head = forwarded_head(request, secret, {});
  const std::optional<std::string> body = co_await fetch(loop, running[model]->port, head);
  if (!body) co_return std::nullopt;
  try {
    co_return json::parse(*body, "the model's server");
  } catch (const Error&) {
    co_return std::nullopt;
  }
}

asio::awaitable<void> ModelsFront::Impl::show_loaded(ExchangePtr exchange, size_t model) {
  const std::string name = unescaped(exchange->request.path.substr(kModels.size()));
  const std::optional<json::Value> found = co_await asked(exchange->request, model);
  json::Value object = found ? *found : unloaded_object(model, name);
  set_status(object, model);
  exchange->reply(json_reply(std::move(object)));
}

// GET /v1/models, /api/tags and /api/ps, the last of those alone that are loaded.
asio::awaitable<void> ModelsFront::Impl::list(ExchangePtr exchange) {
  const bool is_openai = exchange->request.path == "/v1/models";
  const char* member = is_openai ? "data" : "models";
  json::Array all;
  for (size_t i = 0; i < models.size(); ++i) {
    const std::optional<json::Value> found = co_await asked(exchange->request, i);
    const json::Value* list = found && found->is_object() ? found->find(member) : nullptr;
    const bool has_list = list && list->is_array();
    json::Array some = has_list ? list->as_array() : unloaded(exchange->request.path, i);
    for (json::Value& one : some) {
      if (is_openai) set_status(one, i);
      all.push_back(std::move(one));
    }
  }
  json::Value reply = json::Object{};
  if (is_openai) reply.set("object", "list");
  reply.set(member, std::move(all));
  exchange->reply(json_reply(std::move(reply)));
}

// The entries of a list for a model that is not loaded.
json::Array ModelsFront::Impl::unloaded(const std::string& path, size_t model) const {
  json::Array all;
  if (path == kLoaded) return all;
  for (const std::string& one : models[model].names)
    if (path != kTags)
      all.push_back(unloaded_object(model, one));
    else if (!is_pattern(one))
      all.push_back(unloaded_tag(model, one));
  return all;
}

// The facts that are known without its weights and its tokenizer.
json::Value ModelsFront::Impl::unloaded_object(size_t model, const std::string& name) const {
  const ModelCard& card = models[model].card;
  return json::Object{{"id", name},
                      {"object", "model"},
                      {"created", began},
                      {"owned_by", "invar"},
                      {"root", this->name(model)},
                      {"meta", json::Object{{"n_params", card.parameters},
                                            {"size", card.bytes},
                                            {"family", card.family},
                                            {"weights", card.weights}}},
                      {"max_model_len", models[model].context}};
}

json::Value ModelsFront::Impl::unloaded_tag(size_t model, const std::string& name) const {
  const ModelCard& card = models[model].card;
  return json::Object{{"name", ollama::name_with_tag(name)},
                      {"model", ollama::name_with_tag(name)},
                      {"modified_at", ollama::time_text(began)},
                      {"size", card.bytes},
                      {"digest", ""},  // of weights that nobody has read
                      {"details", json::Object{{"parent_model", ""},
                                               {"format", card.format},
                                               {"family", card.family},
                                               {"families", json::Array{card.family}},
                                               {"quantization_level", card.weights}}}};
}

// The form is llama.cpp's router's.
void ModelsFront::Impl::set_status(json::Value& object, size_t model) const {
  object.set("status", json::Object{{"value", state_name(room.state(model))},
                                    {"failed", running[model]->failures > 0 && !is_running(model)},
                                    {"memory_bytes", room.bytes(model)}});
}

std::string ModelsFront::Impl::metrics_text() const {
  Exposition out("");
  const auto each = [&](const char* metric, const char* type, const char* help,
                        const std::function<double(size_t)>& value) {
    out.type(metric, type, help);
    for (size_t i = 0; i < models.size(); ++i)
      out.line(metric, value(i), "model_name=\"" + escaped_label(name(i)) + "\"");
  };
  each("invar:model_loaded", "gauge", "1 while the model is loaded.",
       [&](size_t i) { return is_running(i); });
  each("invar:model_memory_bytes", "gauge", "Memory that the model takes of --models-memory.",
       [&](size_t i) {
         return room.state(i) == ModelRoom::State::unloaded ? 0.0
                                                            : static_cast<double>(room.bytes(i));
       });
  each("invar:model_requests_answering", "gauge", "Requests that the model answers.",
       [&](size_t i) { return static_cast<double>(room.answering(i)); });
  each("invar:model_requests_waiting", "gauge", "Requests that wait for the model to be loaded.",
       [&](size_t i) { return static_cast<double>(room.waiting(i)); });
  each("invar:model_loads_total", "counter", "How often the model was loaded.",
       [&](size_t i) { return static_cast<double>(running[i]->loads); });
  each("invar:model_load_seconds_total", "counter", "Time that its loads took.",
       [&](size_t i) { return running[i]->load_seconds; });
  each("invar:model_deaths_total", "counter", "How often its process ended on its own.",
       [&](size_t i) { return static_cast<double>(running[i]->deaths + running[i]->failures); });
  return out.take();
}

}  // namespace invar::server
