// Tokens in, tokens out, as vLLM's servers are asked: /inference/v1/generate, SkyRL's
// /skyrl/v1/generate.
#include "frontend/vllm_generate.h"

#include "api.h"
#include "base/error.h"
#include "errors.h"
#include "translated.h"

namespace invar::server {

void Server::generate_vllm(std::shared_ptr<Exchange> exchange) {
  generate_tokens(std::move(exchange), false);
}

void Server::generate_skyrl(std::shared_ptr<Exchange> exchange) {
  generate_tokens(std::move(exchange), true);
}

void Server::generate_tokens(std::shared_ptr<Exchange> exchange, bool with_experts) {
  const auto slots = take_slot(*exchange);
  pool_.post(reading(exchange->request), [=, this] {
    guarded(exchange, [&] {
      const BackendFacts facts = backend_.facts();
      const auto asked = std::make_shared<rollout::GenerateAsked>(rollout::asked_of_generate(
          parse_body(std::exchange(exchange->request.body, {})), facts.max_model_len));
      asked->form.nests_experts = with_experts;
      asked->form.routed_layers = facts.routed_layers;
      if (with_experts && facts.routed_layers > 0) asked->body.set("return_routed_experts", true);
      const auto body = std::make_shared<std::string>(json::dump(std::exchange(asked->body, {})));
      http_.post([=, this] {
        guarded(exchange, [&] { begin_tokens(exchange, slots, asked, std::move(*body)); });
      });
    });
  });
}

// On the serving thread.
void Server::begin_tokens(std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
                          std::shared_ptr<rollout::GenerateAsked> asked, std::string body) {
  expect_version(asked->exact_version);
  rollout::GenerateForm& form = asked->form;
  const std::string owner = options_.keys.owner(exchange->request);
  // By which it may be ended (/abort_requests).
  if (!form.request_id.empty()) {
    Headers& headers = exchange->request.headers;
    std::erase_if(headers, [](const auto& one) { return one.first == "x-request-id"; });
    headers.emplace_back("x-request-id", form.request_id);
  }
  const auto inner = Translated::make(
      std::move(exchange), "/v1/completions", std::move(body),
      {.answer =
           [asked](const json::Value& answer) { return generate_answer(asked->form, answer); },
       .event = [asked](const json::Value& event) { return generate_event(asked->form, event); }},
      threads_of(owner));
  inner->slots = slots;
  // By which weights it is computed is known when it begins.
  with_weights([=, this](const WeightsLease& lease) {
    asked->form.weight_version = weight_version_;
    answer_with(inner, slots, lease);
  });
}

}  // namespace invar::server
