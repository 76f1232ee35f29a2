// Answers in the forms of RL stacks: SGLang's /generate, TRL's /generate/, and what these ask of a
// server beside them.
#include <algorithm>

#include "api.h"
#include "base/error.h"
#include "errors.h"
#include "query.h"
#include "translated.h"

namespace invar::server {

void Server::generate(std::shared_ptr<Exchange> exchange, AskedOf asked_of, AnswerOf answer_of) {
  const auto slots = take_slot(*exchange);
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

// A client that asks for another version asks again until it is served.
void Server::expect_version(const json::Value& exact) const {
  if (!exact.is_null() && exact != json::Value(weight_version_))
    throw ApiError{503,
                   fmt::format("expected the weight version {}, found {}", json::excerpt(exact),
                               json::quoted(weight_version_)),
                   "weight_version"};
}

Translated::Threads Server::threads_of(const std::string& owner) {
  return {.pool =
              [this, owner](size_t bytes, auto task) {
                pool_.post({FairPool::Kind::slow, owner, bytes}, std::move(task));
              },
          .serving = [this](auto task) { http_.post(std::move(task)); }};
}

// On the serving thread.
void Server::begin_generating(std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
                              const rollout::Asked& asked, std::string body, AnswerOf answer_of) {
  expect_version(asked.exact_version);
  const std::string owner = options_.keys.owner(exchange->request);
  const auto version = std::make_shared<std::string>();
  const auto inner = Translated::make(
      std::move(exchange), "/v1/completions", std::move(body),
      {.answer = [shown = asked.shown, answer_of, version](
                     const json::Value& answer) { return answer_of(shown, answer, *version); },
       .event = nullptr},
      threads_of(owner));
  inner->slots = slots;
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
  if (query_parameter(exchange->request.query, "wait_for_inflight_requests") == "true")
    mode = "wait";  // its old name
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

namespace {

// The ids that a body names: vLLM's "request_ids", SGLang's "rid". Empty: all are meant.
std::vector<std::string> ids_to_abort(const json::Value& body) {
  constexpr size_t kMost = 4096;
  const json::Value *many = body.find("request_ids"), *one = body.find("rid"),
                    *all = body.find("abort_all");
  std::vector<std::string> ids;
  if (all && *all == json::Value(true)) return ids;
  if (one && !one->is_null()) ids.push_back(text_member(*one, "rid"));
  if (many && !many->is_null()) {
    if (!many->is_array() || many->as_array().size() > kMost)
      throw ApiError{400, fmt::format("expected request_ids as a list of at most {} ids", kMost),
                     "", "request_ids"};
    for (const json::Value& id : many->as_array()) ids.push_back(text_member(id, "request_ids"));
  }
  std::erase(ids, "");
  return ids;
}

}  // namespace

// All that runs, or what has one of these ids: the answer's own, or the X-Request-Id (of
// /inference/v1/generate the request_id) that the client gave.
void Server::abort_requests(std::shared_ptr<Exchange> exchange) {
  const std::vector<std::string> ids = ids_to_abort(json_body(exchange->request));
  const int64_t count = streams_.end_those(
      {503, "the answer was ended by a trainer", "aborted"}, [&](const AnswerStream& stream) {
        const std::string* given = stream.exchange().request.header("x-request-id");
        return ids.empty() || std::ranges::count(ids, stream.admitted().entry.id) ||
               (given && std::ranges::count(ids, *given));
      });
  exchange->reply({.body = json::dump(json::Object{
                       {"success", true}, {"status", "aborted"}, {"aborted", count}})});
}

}  // namespace invar::server
