// The server's statements on itself: its health, the models it serves, how busy it is.
#include "api.h"
#include "base/ends.h"
#include "base/error.h"
#include "query.h"
#include "session/sampling_defaults.h"

namespace invar::server {

void Server::health(std::shared_ptr<Exchange> exchange) {
  exchange->reply({.type = "text/plain"});
}

void Server::version(std::shared_ptr<Exchange> exchange) {
  const BackendFacts facts = backend_.facts();
  exchange->reply({.body = json::dump(json::Object{{"version", INVAR_VERSION},
                                                   {"identity", facts.identity},
                                                   {"weights", to_hex(facts.weights)},
                                                   {"instruction_set", facts.instruction_set}})});
}

void Server::metrics(std::shared_ptr<Exchange> exchange) {
  exchange->reply({.type = "text/plain; version=0.0.4; charset=utf-8",
                   .body = streams_.metrics.text(first_of(model_.names), backend_.facts(),
                                                 backend_.stats(), streams_.steps.totals(),
                                                 http_.counts().connections, streams_.size())});
}

// Sampling parameters that requests leave open.
json::Value Server::sampling_object() const {
  json::Value sampling = defaults_json(model_.defaults);
  sampling.set("from", model_.defaults_from);
  return sampling;
}

json::Value Server::model_object(const std::string& name) const {
  const std::vector<std::string> capabilities = capabilities_of(model_);
  return json::Object{{"id", name},
                      {"object", "model"},
                      {"created", started_},
                      {"owned_by", "invar"},
                      {"root", first_of(model_.names)},
                      {"capabilities", json::Array(capabilities.begin(), capabilities.end())},
                      {"system_fingerprint", admission_.fingerprint()},
                      {"sampling", sampling_object()},
                      {"meta", json::Object{{"n_params", model_.card.parameters},
                                            {"size", model_.card.bytes},
                                            {"family", model_.card.family},
                                            {"weights", model_.card.weights}}},
                      {"max_model_len", static_cast<int64_t>(backend_.facts().max_model_len)}};
}

// As vLLM has it.
json::Value Server::adapter_object(const RequestAdapter& adapter) const {
  json::Value object = model_object(adapter.name);
  object.set("root", adapter.directory);
  object.set("parent", first_of(model_.names));
  return object;
}

void Server::models(std::shared_ptr<Exchange> exchange) {
  json::Array data;
  for (const std::string& name : model_.names) data.push_back(model_object(name));
  if (model_.adapters)
    for (const auto& adapter : model_.adapters->all()) data.push_back(adapter_object(*adapter));
  exchange->reply(
      {.body = json::dump(json::Object{{"object", "list"}, {"data", std::move(data)}})});
}

// GET /v1/models/NAME, whose slashes a client may have escaped.
void Server::model(std::shared_ptr<Exchange> exchange) {
  const std::string& path = exchange->request.path;
  const std::string name = unescaped(path.substr(path.find("/models/") + 8));
  const auto adapter = admission_.adapter_of(name);
  exchange->reply({.body = json::dump(adapter ? adapter_object(*adapter) : model_object(name))});
}

// As vLLM has it: how many requests are being answered or wait.
void Server::load(std::shared_ptr<Exchange> exchange) {
  exchange->reply(
      {.body = json::dump(json::Object{
           {"server_load", static_cast<int64_t>(streams_.size() + behind_swap_.size())}})});
}

}  // namespace invar::server
