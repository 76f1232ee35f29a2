// POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them: adapters come and go
// while the server serves. Reading one holds no request up.
#include "api.h"
#include "base/error.h"
#include "errors.h"

namespace invar::server {

namespace {

std::string told(const json::Value& body, const char* name) {
  const json::Value* value = body.find(name);
  const std::string text = value ? text_member(*value, name) : std::string();
  if (text.empty())
    throw ApiError{400, fmt::format("expected {} of at least one byte, found none", name), "",
                   name};
  return text;
}

void tell_success(Exchange& exchange, const std::string& name, const char* done) {
  exchange.reply({.type = "text/plain; charset=utf-8",
                  .body = fmt::format("Success: LoRA adapter '{}' {} successfully.", name, done)});
}

}  // namespace

ServedAdapters& Server::expect_adapters() const {
  if (!model_.adapters)
    throw ApiError{400, "adapters were not enabled when the server started (--enable-lora)"};
  return *model_.adapters;
}

void Server::load_adapter(std::shared_ptr<Exchange> exchange) {
  ServedAdapters& adapters = expect_adapters();
  const json::Value body = json_body(exchange->request);
  const std::string name = told(body, "lora_name"), path = told(body, "lora_path");
  const json::Value* in_place = body.find("load_inplace");
  if (in_place && !in_place->is_bool())
    throw ApiError{
        400, fmt::format("expected load_inplace as a boolean, found {}", in_place->type_name()), "",
        "load_inplace"};
  const bool replaces = in_place && in_place->as_bool();
  for (const std::string& served : model_.names)
    if (served == name)
      throw ApiError{400, fmt::format("{} is the name of the model", json::quoted(name)), "",
                     "lora_name"};
  pool_.post(slow(exchange->request), [this, exchange, name, path, replaces, &adapters] {
    guarded(exchange, [&] {
      adapters.load(name, path, replaces);
      http_.post([=] { tell_success(*exchange, name, "added"); });
    });
  });
}

void Server::unload_adapter(std::shared_ptr<Exchange> exchange) {
  ServedAdapters& adapters = expect_adapters();
  const std::string name = told(json_body(exchange->request), "lora_name");
  pool_.post(slow(exchange->request), [this, exchange, name, &adapters] {
    guarded(exchange, [&] {
      if (!adapters.unload(name))
        throw ApiError{404, fmt::format("the adapter {} is not loaded", json::quoted(name)),
                       "model_not_found", "lora_name"};
      http_.post([=] { tell_success(*exchange, name, "removed"); });
    });
  });
}

}  // namespace invar::server
