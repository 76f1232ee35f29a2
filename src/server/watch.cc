// GET and POST /v1/engine, GET /v1/engine/steps: what the engine is and does, for the page, and
// with --lab how it is changed.
#include <charconv>

#include "api.h"
#include "base/error.h"
#include "query.h"

namespace invar::server {

namespace {

template <typename T>
json::Value list_of(const std::vector<T>& values) {
  return json::Array(values.begin(), values.end());
}

struct Change {
  LabSettings settings;
  int32_t seconds = 0;  // for so long, unless it is asked for again; 0: to stay
};

// The change that the body asks for; settings that it leaves open stay as they are.
Change change_from(const std::string& text, const LabSettings& now) {
  Change change{now};
  LabSettings& settings = change.settings;
  const json::Value body = parse_body(text);
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  for (const auto& [name, value] : body.as_object()) {
    std::string* text = name == "policy"       ? &settings.policy
                        : name == "arithmetic" ? &settings.arithmetic
                        : name == "drafter"    ? &settings.drafter
                                               : nullptr;
    int32_t* number = name == "step_rows"     ? &settings.step_rows
                      : name == "ranks"       ? &settings.ranks
                      : name == "for_seconds" ? &change.seconds
                                              : nullptr;
    if (!text && !number)
      fail_usage("expected policy, step_rows, arithmetic, drafter, ranks or for_seconds, found {}",
                 json::quoted(name));
    if (text && !value.is_string())
      fail_usage("expected {} as a text, found {}", name, value.type_name());
    const auto found = text ? 0 : value.to_integer();
    if (!found || *found < 0 || *found > INT32_MAX)
      fail_usage("expected {} as an integer, 0 or more, found {}", name, json::excerpt(value));
    if (text) *text = value.as_string();
    if (number) *number = static_cast<int32_t>(*found);
  }
  return change;
}

}  // namespace

json::Value Server::engine_object() const {
  const BackendFacts facts = backend_.facts();
  json::Value lab;
  if (options_.lab) {
    const LabSettings now = options_.lab->settings();
    const LabChoices& choices = options_.lab->choices();
    lab = json::Object{{"policy", now.policy},
                       {"step_rows", now.step_rows},
                       {"arithmetic", now.arithmetic},
                       {"drafter", now.drafter},
                       {"ranks", now.ranks},
                       {"policies", list_of(choices.policies)},
                       {"arithmetics", list_of(choices.arithmetics)},
                       {"drafters", list_of(choices.drafters)},
                       {"rank_counts", list_of(choices.ranks)}};
  }
  return json::Object{
      {"models", list_of(model_.names)},
      {"identity", facts.identity},
      {"weights", to_hex(facts.weights)},
      {"system_fingerprint", admission_.fingerprint()},
      {"device", facts.instruction_set},
      {"context", facts.max_model_len},
      {"vocabulary", facts.vocab},
      {"max_logprobs", model_.max_logprobs},
      {"chat", model_.chat != nullptr},
      {"journal", journal_ != nullptr},
      {"receipts",
       model_.receipt_key ? json::Value(model_.receipt_key->public_key()) : json::Value()},
      {"lab", std::move(lab)}};
}

void Server::engine(std::shared_ptr<Exchange> exchange) {
  exchange->reply({.body = json::dump(engine_object())});
}

void Server::change_engine(std::shared_ptr<Exchange> exchange) {
  if (!options_.lab)
    throw ApiError{403, "the engine is changed on a server with --lab alone", "no_lab"};
  const LabSettings now = options_.lab->settings();
  Change change;
  try {
    change = change_from(exchange->request.body, now);
  } catch (const Error& error) {
    throw ApiError{400, error.what()};
  }
  if (change.settings == now)
    engine(std::move(exchange));
  else
    change_lab(std::move(exchange), change.settings);
  lend_lab(std::chrono::seconds(change.seconds));
}

void Server::change_lab(std::shared_ptr<Exchange> exchange, const LabSettings& settings) {
  expect_awake();
  change_at_rest(std::move(exchange), [this, settings] {
    options_.lab->change(settings);
    return engine_object();
  });
}

// A page that was closed says no word: what it changed goes back when it no longer asks for it.
void Server::lend_lab(std::chrono::seconds time) {
  lab_lease_ = nullptr;
  if (time.count() == 0) return;
  lab_lease_ = http_.at(Clock::now() + time, [this] {
    if (options_.lab->settings() == lab_own_) return;
    if (swap_ || asleep_) return lend_lab(std::chrono::seconds(1));
    change_lab(Relay::make(), lab_own_);
  });
}

// GET /v1/engine/steps?after=N
void Server::steps(std::shared_ptr<Exchange> exchange) {
  int64_t after = 0;
  if (const auto value = query_parameter(exchange->request.query, "after")) {
    const char* end = value->data() + value->size();
    const auto read = std::from_chars(value->data(), end, after);
    if (read.ec != std::errc() || read.ptr != end || after < 0)
      throw ApiError{
          400,
          fmt::format("expected after as the number of a step, found {}", json::quoted(*value)), "",
          "after"};
  }
  const BackendStats stats = backend_.stats();
  json::Value body = streams_.steps.after(after);
  body.set("now_ms",
           std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count());
  body.set("stats", json::Object{{"running", stats.running},
                                 {"waiting", stats.waiting},
                                 {"blocks", stats.blocks},
                                 {"free_blocks", stats.free_blocks},
                                 {"preemptions", stats.preemptions},
                                 {"prompt_tokens", stats.prompt_tokens},
                                 {"cached_tokens", stats.cached_tokens},
                                 {"generated_tokens", streams_.metrics.all_generation_tokens}});
  body.set("seconds",
           json::Object{{"time_to_first_token", streams_.metrics.recent_first_token.summary()},
                        {"inter_token", streams_.metrics.recent_inter_token.summary()},
                        {"end_to_end", streams_.metrics.recent_end_to_end.summary()}});
  exchange->reply({.body = json::dump(body)});
}

}  // namespace invar::server
