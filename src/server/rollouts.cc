// Answers in the forms of RL stacks: SGLang's /generate, TRL's /generate/, and what these ask of a
// server beside them.
#include "api.h"
#include "base/error.h"
#include "errors.h"
#include "query.h"
#include "translated.h"

namespace invar::server {

void Server::generate(std::shared_ptr<Exchange> exchange, AskedOf asked_of, AnswerOf answer_of) {
  const auto slots = take_slot(exchange->request);
  pool_.post(reading(exchange->request), [=, this] {
    guarded(exchange, [&] {
      const auto asked = std::make_shared<rollout::Asked>();
      // Each form of the body goes before the next one is made.
      *asked = asked_of(parse_body(std::exchange(exchange->request.body, {})));
      const auto body = std::make_shared<std::string>(json::dump(asked->body));
      asked->body = {};
      http_.post([=, this] {
        guarded(exchange,
                [&] { begin_generating(exchange, slots, *asked, std::move(*body), answer_of); });
      });
    });
  });
}

// On the serving thread.
void Server::begin_generating(std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
                              const rollout::Asked& asked, std::string body, AnswerOf answer_of) {
  // Asked again until it is served.
  if (!asked.exact_version.is_null() && asked.exact_version != json::Value(weight_version_))
    throw ApiError{503,
                   fmt::format("expected the weight version {}, found {}",
                               json::excerpt(asked.exact_version), json::quoted(weight_version_)),
                   "weight_version"};
  const std::string owner = options_.keys.owner(exchange->request);
  const auto version = std::make_shared<std::string>();
  const auto inner =
      Translated::make(std::move(exchange), "/v1/completions", std::move(body),
                       [shown = asked.shown, answer_of, version](const json::Value& answer) {
                         return answer_of(shown, answer, *version);
                       },
                       {.pool =
                            [this, owner](size_t bytes, auto task) {
                              pool_.post({FairPool::Kind::slow, owner, bytes}, std::move(task));
                            },
                        .serving = [this](auto task) { http_.post(std::move(task)); }});
  // By which weights it is computed is known when it begins.
  with_weights([=, this](const WeightsLease& lease) {
    *version = weight_version_;
    answer_with(inner, slots, lease);
  });
}

void Server::generate_sglang(std::shared_ptr<Exchange> exchange) {
  generate(std::move(exchange), rollout::asked_of_sglang, rollout::sglang_answer);
}

void Server::generate_trl(std::shared_ptr<Exchange> exchange) {
  generate(std::move(exchange), rollout::asked_of_trl, rollout::trl_answer);
}

// Under SGLang's names, of which slime reads the sizes.
void Server::server_info(std::shared_ptr<Exchange> exchange) {
  const BackendFacts facts = backend_.facts();
  const int64_t slots = int64_t{backend_.stats().blocks} * facts.block_size;  // of all replicas
  exchange->reply({.body = json::dump(json::Object{{"model_path", model_.names.front()},
                                                   {"served_model_name", model_.names.front()},
                                                   {"tokenizer_path", model_.names.front()},
                                                   {"is_generation", true},
                                                   {"version", INVAR_VERSION},
                                                   {"tp_size", 1},
                                                   {"pp_size", 1},
                                                   {"dp_size", 1},
                                                   {"ep_size", 1},
                                                   {"num_gpus", 1},
                                                   {"nnodes", 1},
                                                   {"disaggregation_mode", "null"},
                                                   {"max_total_num_tokens", slots},
                                                   {"context_length", int64_t{facts.max_model_len}},
                                                   {"weight_version", weight_version_},
                                                   {"identity", facts.identity},
                                                   {"weights", to_hex(facts.weights)}})});
}

// Ranks are threads of the server: to a trainer it is one.
void Server::world_size(std::shared_ptr<Exchange> exchange) {
  exchange->reply({.body = json::dump(json::Object{{"world_size", 1}})});
}

// Blocks of old weights are forgotten when the weights change, and no answer depends on the others.
void Server::reset_prefix_cache(std::shared_ptr<Exchange> exchange) {
  exchange->reply({.body = json::dump(json::Object{{"success", true}, {"message", "done"}})});
}

void Server::hold_answers(std::shared_ptr<Exchange> exchange, json::Value reply) {
  until_rest_.emplace_back(std::move(exchange), json::dump(reply));
  swap_when_free();
}

// mode, in the body or the query: "abort" ends what has begun, "wait" waits for its end, "keep"
// (also "in_place", "retract") keeps it as it is: it goes on when the pause is over, by the weights
// that there are then.
void Server::pause(std::shared_ptr<Exchange> exchange) {
  std::string mode(query_parameter(exchange->request.query, "mode").value_or("abort"));
  if (!exchange->request.body.empty()) {
    const json::Value body = json_body(exchange->request);
    if (const json::Value* found = body.find("mode"); found && !found->is_null())
      mode = text_member(*found, "mode");
  }
  if (mode == "in_place" || mode == "retract") mode = "keep";
  if (mode != "wait" && mode != "keep" && mode != "abort")
    throw ApiError{
        400, fmt::format("expected the mode abort, wait or keep, found {}", json::quoted(mode))};
  is_paused_ = true;
  keeps_answers_ = mode == "keep";
  if (mode == "abort") streams_.end_all({503, "the answer was ended by a pause", "aborted"});
  hold_answers(std::move(exchange), json::Object{{"status", "paused"}, {"message", "paused"}});
}

void Server::is_paused(std::shared_ptr<Exchange> exchange) {
  exchange->reply({.body = json::dump(json::Object{{"is_paused", is_held()},
                                                   {"is_sleeping", asleep_.has_value()}})});
}

void Server::go_on_generating(std::shared_ptr<Exchange> exchange) {
  exchange->reply({.body = json::dump(json::Object{{"status", "resumed"}, {"message", "ok"}})});
  is_paused_ = keeps_answers_ = false;
  release_held();
}

void Server::release_held() {
  if (is_held()) return;
  for (auto& task : std::exchange(behind_swap_, {})) with_weights(std::move(task));
  thaw();
}

void Server::thaw() {
  if (is_held() || swap_ || !streams_.is_frozen()) return;
  with_weights([this](const WeightsLease& lease) {
    for (const Request& request : streams_.thaw(weight_version_))
      pool_.post({FairPool::Kind::slow, FairPool::kServer}, [this, request, lease] {
        try {
          backend_.submit(request);
        } catch (const EngineFailed&) {  // of which all answers hear
        }
      });
  });
}

void Server::abort_requests(std::shared_ptr<Exchange> exchange) {
  streams_.end_all({503, "the answer was ended by a trainer", "aborted"});
  exchange->reply({.body = json::dump(json::Object{{"success", true}})});
}

}  // namespace invar::server
