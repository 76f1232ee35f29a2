// Which model a request means.
#include <fmt/ranges.h>

#include "base/error.h"
#include "doors.h"
#include "models_front_impl.h"
#include "query.h"

namespace invar::server {

namespace {

// The name in the body; empty where it has none, or is no JSON.
std::string name_in(const HttpRequest& request) {
  const size_t first = request.body.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || request.body[first] != '{') return {};
  const json::Value body = parse_body(request.body);
  const bool is_ollama = request.path.starts_with("/api/");
  const json::Value* name = body.find("model");
  if (!name && is_ollama) name = body.find("name");
  if (!name || name->is_null()) return {};
  if (!name->is_string())
    throw ApiError{400,
                   fmt::format("expected \"model\" as a string, found {}", json::excerpt(*name)),
                   "invalid_type", "model"};
  return name->as_string();
}

// Whether the path names an answer that one of the models has made.
bool names_an_answer(const HttpRequest& request, const Door& door) {
  const bool is_list = request.path == "/v1/files" || request.path == "/v1/batches";
  return (&door == &doors::kKept || &door == &doors::kLine) && !is_list;
}

size_t most_body(const Door& door, size_t most) {
  return door.body == Door::Body::small ? std::min(most, Door::kSmall) : most;
}

}  // namespace

Passage ModelsFront::Impl::gate(const HttpRequest& request) {
  HttpReply reply;
  try {
    if (const Door* door = Server::find_door(options, request, reply))
      return {.refusal = std::nullopt,
              .max_body_bytes = most_body(*door, options.http.max_body_bytes)};
  } catch (const ApiError& error) {
    reply = error_reply(error, request.path);
  }
  for (auto& header : headers_of(options, request)) reply.headers.push_back(std::move(header));
  return {.refusal = std::move(reply)};
}

void ModelsFront::Impl::refuse(Exchange& exchange, const ApiError& error) {
  exchange.reply(error_reply(error, exchange.request.path));
}

// Runs `action` and answers with an error what it throws. From any thread.
void ModelsFront::Impl::guarded(const ExchangePtr& exchange, const std::function<void()>& action) {
  const auto say = [&](const ApiError& error) {
    http.post([this, exchange, error] { refuse(*exchange, error); });
  };
  try {
    action();
  } catch (const ApiError& error) {
    say(error);
  } catch (const Error& error) {
    say(refusal_of(error, {}));
  } catch (const std::exception& error) {
    say({500, error.what()});
  }
}

void ModelsFront::Impl::set_deadline(const ExchangePtr& exchange) {
  const auto time = time_limit(options, exchange->request);
  if (!time) return;
  exchange->deadline = http.at(exchange->arrival + *time, [this, weak = std::weak_ptr(exchange)] {
    const auto late = weak.lock();
    if (!late || late->is_answered()) return;
    late->on_deadline ? late->on_deadline() : refuse(*late, {504, kTooLate, "deadline_exceeded"});
  });
}

void ModelsFront::Impl::handle(const ExchangePtr& exchange) {
  guarded(exchange, [&] {
    HttpRequest& request = exchange->request;
    exchange->more_headers = headers_of(options, request);
    set_deadline(exchange);
    HttpReply otherwise;
    const Door* door = Server::find_door(options, request, otherwise);
    if (!door) return exchange->reply(std::move(otherwise));
    if (const size_t most = most_body(*door, options.http.max_body_bytes);
        request.body.size() > most)
      throw ApiError{413, fmt::format("expected a body of at most {} bytes, found one of {}", most,
                                      request.body.size())};
    route(exchange, *door);
  });
}

void ModelsFront::Impl::route(const ExchangePtr& exchange, const Door& door) {
  const HttpRequest& request = exchange->request;
  if (const auto asked = query_parameter(request.query, "model"))
    return begin(exchange, {find(unescaped(*asked))}, false, hold(exchange));
  if (answers_itself(exchange)) return;
  if (names_an_answer(request, door)) {
    std::vector<size_t> all;
    for (size_t i = 0; i < models.size(); ++i) all.push_back(i);
    return begin(exchange, std::move(all), false, hold(exchange));
  }
  if (&door == &doors::kFixed && request.method != "POST") {
    const size_t last = room.last_used();
    if (last == models.size()) refuse_nameless(request.path);
    return begin(exchange, {last}, false, hold(exchange));
  }
  ask_by_body(exchange, door);
}

void ModelsFront::Impl::ask_by_body(const ExchangePtr& exchange, const Door& door) {
  std::shared_ptr<Held> held = hold(exchange);
  const std::string owner = options.keys.owner(exchange->request);
  const bool is_answer = door.takes_slots;
  // The slots go on the serving thread, as they came.
  auto find_out = [this, exchange, held, is_answer]() mutable {
    std::optional<size_t> model;
    guarded(exchange, [&] {
      const std::string name = name_in(exchange->request);
      if (name.empty()) refuse_nameless(exchange->request.path);
      model = find(name);
    });
    http.post([this, exchange, held = std::move(held), is_answer, model] {
      if (model) begin(exchange, {*model}, is_answer && models[*model].has_journal, held);
    });
  };
  if (!pool.offer(FairPool::reading(owner, exchange->request.body.size()), find_out))
    throw ApiError{429,
                   fmt::format("expected at most {} requests of one key that wait to be read, "
                               "found as many",
                               FairPool::kMostWaiting),
                   "queue_full"};
}

size_t ModelsFront::Impl::find(const std::string& name) const {
  for (const bool with_patterns : {false, true})
    for (size_t i = 0; i < models.size(); ++i)
      for (const std::string& one : models[i].names)
        if (with_patterns ? names_without_tag(one, name) : one == name) return i;
  throw ApiError{
      404,
      fmt::format("the model {} does not exist; there are {}", json::quoted(name), all_names()),
      "model_not_found", "model"};
}

void ModelsFront::Impl::refuse_nameless(const std::string& where) const {
  throw ApiError{400,
                 fmt::format("expected \"model\" in the body of the request, or ?model=NAME behind "
                             "{}, since several are served: {}",
                             where, all_names()),
                 "missing_required_parameter", "model"};
}

std::string ModelsFront::Impl::all_names() const {
  std::vector<std::string> all;
  for (const FrontModel& model : models)
    for (const std::string& one : model.names) all.push_back(one);
  return fmt::format("{}", fmt::join(all, ", "));
}

}  // namespace invar::server
