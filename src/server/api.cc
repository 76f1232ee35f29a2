#include "api.h"

#include <malloc.h>

#include <algorithm>
#include <ctime>

#include "base/ends.h"
#include "base/error.h"
#include "errors.h"
#include "request_rules.h"
#include "routes.h"

namespace invar::server {

Server::Server(const ServerOptions& options, const ServedModel& model, Backend& backend,
               Journal* journal)
    : options_(options),
      model_(model),
      backend_(backend),
      journal_(journal),
      admission_(model, backend),
      slots_(options.max_queued, options.max_queued_bytes, options.fair_by_key ? 2 : 1),
      started_(static_cast<int64_t>(std::time(nullptr))),
      http_(
          options.http, [this](const HttpRequest& request) { return gate(request); },
          [this](std::shared_ptr<Exchange> exchange) { handle(exchange); },
          [](int status, const std::string& sentence, const std::string& path) {
            return error_reply({.status = status, .message = sentence}, path);
          }),
      streams_(
          backend, [this](std::function<void()> task) { http_.post(std::move(task)); },
          [this](const AnswerStream& stream, Outcome outcome) {
            const std::string& id = stream.admitted().entry.id;
            waiting_.erase(id);
            keep_output(stream);
            if (stream.admitted().was_large || ends_forms(stream)) trim_memory();
            if (journal_) journal_->end(id, outcome);
            swap_when_free();
          }),
      transfers_(options.receiver,
                 [this](std::function<void()> task) { http_.post(std::move(task)); }) {
  if (!options.step_trace.empty()) streams_.trace.emplace(options.step_trace);
  if (!options.request_log.empty()) streams_.request_log.emplace(options.request_log);
  if (!options.batch_file.empty()) open_batches();
  if (options.lab) lab_own_ = options.lab->settings();
  streams_.on_large = [this] { trim_memory(); };
  http_.on_calm([this] { trim_memory(); });
  if (journal_)
    streams_.settle_cached = [this](const std::string& id, int64_t tokens, auto done) {
      journal_->settle_cached(id, tokens, std::move(done));
    };
  streams_.on_engine_failed = [this](const std::string& sentence) {
    if (!engine_failure_.empty()) return;  // of another replica
    engine_failure_ = sentence;
    stop();
  };
}

void Server::run() {
  backend_.start(streams_);
  if (journal_) {
    // Read before the first request of this life: what is unfinished later is being computed.
    const auto cut_off = std::make_shared<const std::vector<JournalLine>>(journal_->unfinished());
    with_weights([this, cut_off](WeightsLease lease) {
      pool_.post({FairPool::Kind::slow, FairPool::kServer}, [=, this] { resume(*cut_off, lease); });
    });
  }
  if (batches_) batches_->resume();
  http_.on_readable(signals_.file(), [this] { stop(); });
  if (options_.stop_file >= 0) http_.on_readable(options_.stop_file, [this] { stop(); });
  http_.run();
  if (!engine_failure_.empty()) throw EngineFailed(engine_failure_);
}

void Server::stop() {
  lab_lease_ = nullptr;
  is_paused_ = keeps_answers_ = false;
  is_ending_ = true;
  transfers_.stop();
  asleep_ ? wake_to_end() : release_held();
  http_.stop();
}

Passage Server::gate(const HttpRequest& request) {
  HttpReply reply;
  try {
    if (const Route* route = find_route(options_, request, reply))
      return {.refusal = std::nullopt, .max_body_bytes = most_body(*route)};
  } catch (const ApiError& error) {
    reply = error_reply(error, request.path);
  }
  ++streams_.metrics.refused[reply.status];
  std::ranges::move(headers_of(options_, request), std::back_inserter(reply.headers));
  return {.refusal = std::move(reply)};
}

void Server::handle(const std::shared_ptr<Exchange>& exchange) {
  try {
    exchange->more_headers = headers_of(options_, exchange->request);
    set_deadline(exchange);
    route(exchange);
  } catch (const ApiError& error) {
    refuse(*exchange, error);
  } catch (const std::exception& error) {
    refuse(*exchange, {500, error.what()});
  }
}

void Server::refuse(Exchange& exchange, const ApiError& error) {
  ++streams_.metrics.refused[error.status];
  if (exchange.slots) exchange.slots->give_back();
  exchange.reply(error_reply(error, exchange.request.path));
}

void Server::refuse_late(Exchange& exchange) {
  const ApiError error{504, kTooLate, "deadline_exceeded"};
  ++streams_.metrics.refused[error.status];
  exchange.reply(error_reply(error, exchange.request.path));
}

void Server::set_deadline(const std::shared_ptr<Exchange>& exchange) {
  const auto time = time_limit(options_, exchange->request);
  if (!time) return;
  exchange->deadline = http_.at(exchange->arrival + *time, [this, weak = std::weak_ptr(exchange)] {
    const auto late = weak.lock();
    if (!late) return;
    if (late->on_deadline) return late->on_deadline();
    if (!late->is_answered()) refuse_late(*late);
  });
}

void Server::route(const std::shared_ptr<Exchange>& exchange) {
  HttpReply otherwise;
  if (const Route* route = find_route(options_, exchange->request, otherwise)) {
    check_body(*route, exchange->request);
    return (this->*route->endpoint)(exchange);
  }
  if (otherwise.status >= 400) ++streams_.metrics.refused[otherwise.status];
  exchange->reply(std::move(otherwise));
}

const Door* Server::find_door(const ServerOptions& options, const HttpRequest& request,
                              HttpReply& otherwise) {
  const Route* route = find_route(options, request, otherwise);
  return route ? &route->door : nullptr;
}

// With the path that is meant where a client's base URL lacks /v1, or has it twice.
std::string Server::nothing_at(const std::string& path) {
  const auto is_there = [](const std::string& other) {
    return std::ranges::any_of(routes(), [&](const Route& route) { return route.matches(other); });
  };
  const std::string sentence = "there is nothing at " + json::quoted(path);
  const std::string other = path.starts_with("/v1/v1/") ? path.substr(3) : "/v1" + path;
  return is_there(other) ? sentence + "; perhaps " + json::quoted(other) + " is meant" : sentence;
}

const Server::Route* Server::find_route(const ServerOptions& options, const HttpRequest& request,
                                        HttpReply& otherwise) {
  check_page(options, request);
  check_front(options, request);
  std::string allowed;
  for (const auto* table : {&routes(), &trainer_routes(), &tool_routes()})
    for (const Route& route : *table) {
      if (!route.matches(request.path)) continue;
      const bool is_head = request.method == "HEAD" && std::string_view(route.method) == "GET";
      if (request.method != route.method && !is_head) {
        allowed += allowed.empty() ? route.method : std::string(", ") + route.method;
        continue;
      }
      options.keys.check(route.key, request);
      return &route;
    }
  if (allowed.empty()) throw ApiError{404, nothing_at(request.path)};
  if (request.method == "OPTIONS" && request.header("access-control-request-method")) {
    otherwise = {.status = 204,
                 .headers = {{"Access-Control-Allow-Methods", allowed},
                             {"Access-Control-Allow-Headers", "*, Authorization"},
                             {"Access-Control-Max-Age", "600"}}};
    return nullptr;
  }
  otherwise = error_reply(
      {405, fmt::format("expected {} at {}, found {}", allowed, request.path, request.method)},
      request.path);
  otherwise.headers.emplace_back("Allow", allowed);
  return nullptr;
}

namespace {

// The body, for who looks for a field's name in it; null where it is none.
json::Value parsed_or_null(const std::string& body) {
  try {
    return body.empty() ? json::Value() : parse_body(body);
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

FairPool::Task Server::reading(const HttpRequest& request) const {
  return FairPool::reading(options_.keys.owner(request), request.body.size());
}

FairPool::Task Server::slow(const HttpRequest& request) const {
  return {FairPool::Kind::slow, options_.keys.owner(request), request.body.size()};
}

void Server::offer(FairPool::Task task, std::function<void()> run) {
  if (!pool_.offer(std::move(task), std::move(run)))
    throw ApiError{
        429,
        fmt::format("expected at most {} requests of one key that wait to be read, found "
                    "as many",
                    FairPool::kMostWaiting),
        "queue_full"};
}

void Server::reply_later(FairPool::Task task, std::shared_ptr<Exchange> exchange,
                         std::function<json::Value()> make) {
  const bool is_much = task.bytes > FairPool::kBig;
  offer(std::move(task), [this, exchange = std::move(exchange), make = std::move(make), is_much] {
    guarded(exchange, [&] {
      const auto reply = std::make_shared<HttpReply>(HttpReply{.body = json::dump(make())});
      http_.post([exchange, reply] { exchange->reply(std::move(*reply)); });
    });
    if (is_much) trim_memory();
  });
}

// Whether forms were needed and no answer is made now. While others are, what forms leave behind is
// used again.
bool Server::ends_forms(const AnswerStream& stream) {
  for (const Request& request : stream.admitted().requests)
    had_forms_ |= !request.structured_output.empty();
  return streams_.size() == 0 && std::exchange(had_forms_, false);
}

namespace {

// malloc_trim leaves what a thread has freed at the end of its own heap: freeing a large piece
// there gives it back.
void give_back_end() {
  constexpr size_t kLarge = 256 << 10;  // below M_MMAP_THRESHOLD
  void* volatile piece = ::malloc(kLarge);
  ::free(piece);
}

}  // namespace

void Server::trim_memory() {
  give_back_end();
  if (trimming_.exchange(true)) return;
  pool_.post({FairPool::Kind::slow, FairPool::kServer}, [this] {
    trimming_ = false;
    ::malloc_trim(0);
  });
}

void Server::guarded(const std::shared_ptr<Exchange>& exchange,
                     const std::function<void()>& action) {
  const auto refuse = [&](const ApiError& error) {
    http_.post([this, exchange, error] { this->refuse(*exchange, error); });
  };
  try {
    action();
  } catch (const ApiError& error) {
    refuse(error);
  } catch (const Error& error) {  // of what was asked for, or of the body's JSON
    refuse(refusal_of(error, parsed_or_null(exchange->request.body)));
  } catch (const std::exception& error) {
    refuse({500, error.what()});
  }
}

}  // namespace invar::server
