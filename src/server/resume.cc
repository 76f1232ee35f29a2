// Answers that go on after a crash: of the server (its journal), and of the connection (its client
// asks for the rest).
#include <charconv>
#include <ctime>

#include "api.h"
#include "base/error.h"
#include "errors.h"
#include "query.h"
#include "relay.h"

namespace invar::server {

namespace {

bool read_stream(std::string_view query) {
  const std::string_view value = query_parameter(query, "stream").value_or("false");
  if (value != "true" && value != "false")
    throw ApiError{400,
                   fmt::format("expected stream as true or false, found {}", json::quoted(value)),
                   "", "stream"};
  return value == "true";
}

// How many events the client has: one more than the number of the last of them.
int64_t read_skip(std::string_view query, bool stream) {
  const auto value = query_parameter(query, "starting_after");
  if (!value) return 0;
  int64_t last = 0;
  const auto end = std::from_chars(value->data(), value->data() + value->size(), last);
  if (end.ec != std::errc() || end.ptr != value->data() + value->size() || last < -1 ||
      last == INT64_MAX)
    throw ApiError{400,
                   fmt::format("expected starting_after as the number of an event, found {}",
                               json::quoted(*value)),
                   "", "starting_after"};
  if (!stream) throw ApiError{400, "starting_after needs stream=true", "", "starting_after"};
  return last + 1;
}

}  // namespace

// GET ENDPOINT/{id}: the answer once more, or from an event on.
void Server::retrieve(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  const bool stream = read_stream(request.query);
  const int64_t skip = read_skip(request.query, stream);
  const std::string id = request.path.substr(request.path.rfind('/') + 1);
  with_weights([=, this](const WeightsLease& lease) {
    const auto find = [=, this] {
      guarded(exchange, [&] {
        const std::string& path = exchange->request.path;
        const size_t slash = path.rfind('/');
        const auto line = journal_ ? journal_->find(id) : std::nullopt;
        const bool is_receipt = path.starts_with("/v1/receipts/");
        const bool is_there = line && (is_receipt || line->entry.endpoint == path.substr(0, slash));
        if (!is_there || !belongs_to(options_.keys.owner(exchange->request), line->entry))
          throw ApiError{404, fmt::format("there is no answer {}", json::quoted(id))};
        go_on(exchange, *line, stream, skip, lease, is_receipt);
      });
    };
    guarded(exchange, [&] {
      offer(reading(exchange->request), [=, this] {
        guarded(exchange, [&] {
          const int64_t bytes = journal_ ? journal_->bytes_of_line(id) : 0;
          if (!is_large(bytes)) return find();
          offer(
              FairPool::reading(options_.keys.owner(exchange->request), static_cast<size_t>(bytes)),
              find);
        });
      });
    });
  });
}

// Runs on the worker. The prefix cache's tokens are those that were said first: 0 where the answer
// has ended without a word, and where this life of it may be the first to say something.
Admitted Server::readmit(const JournalLine& line) {
  Admitted admitted = admission_.readmit(line.entry);
  admitted.cached = line.cached || line.outcome ? line.cached.value_or(0)
                                                : journal_->settle_cached(line.entry.id, 0);
  return admitted;
}

// On the worker. An answer that waits for its client is handed over, any other computed again.
void Server::go_on(std::shared_ptr<Exchange> exchange, const JournalLine& line,
                   std::optional<bool> stream, int64_t skip, const WeightsLease& lease,
                   bool receipt) {
  if (is_question(line.entry.endpoint))
    return ask_again(exchange, line, std::make_shared<HeldSlots>(slots_, line.entry.owner), lease,
                     receipt);
  const auto admitted = std::make_shared<Admitted>(readmit(line));
  if (receipt) admission_.ask_for_receipt(*admitted);
  admitted->slots = std::make_shared<HeldSlots>(slots_, line.entry.owner);
  const bool as_before = !receipt && (!stream || *stream == admitted->request.stream);
  if (stream) admitted->request.stream = *stream;
  const bool is_whole = !receipt && !admitted->request.stream;
  http_.post([this, exchange = std::move(exchange), admitted = std::move(admitted), as_before, skip,
              is_whole, outcome = line.outcome, lease]() mutable {
    exchange->drop_body();
    if (is_whole && tell_background(*exchange, *admitted, outcome)) return;
    const auto found = waiting_.find(admitted->entry.id);
    if (as_before && found != waiting_.end()) {
      const std::shared_ptr<Relay> relay = found->second;
      if (!relay->is_kept()) waiting_.erase(found);
      return relay->connect(std::move(exchange), skip);
    }
    try {
      take_slots(*admitted->slots, admitted->request);
    } catch (const ApiError& error) {
      return refuse(*exchange, error);
    }
    share_fairly(*admitted->slots, admitted->requests);
    const auto relay = Relay::make();
    relay->connect(std::move(exchange), skip);
    streams_.number(admitted->requests);
    submit(relay, std::move(admitted), lease);
  });
}

// On the worker, when the server begins: what a crash cut off goes on.
void Server::resume(const std::vector<JournalLine>& cut_off, const WeightsLease& lease) {
  for (const JournalLine& line : cut_off) {
    // Its numbers go to nobody before somebody asks again.
    if (is_question(line.entry.endpoint)) {
      journal_->end(line.entry.id, Outcome::aborted);
      continue;
    }
    try {
      const auto admitted = std::make_shared<Admitted>(readmit(line));
      admitted->slots = std::make_shared<HeldSlots>(slots_, line.entry.owner);
      admitted->slots->insist_on(admitted->requests.size());
      share_fairly(*admitted->slots, admitted->requests);
      const auto relay = waiting_relay(*admitted);
      http_.post([this, relay, id = line.entry.id] { waiting_.emplace(id, relay); });
      streams_.number(admitted->requests);
      submit(relay, admitted, lease);
    } catch (const ApiError& error) {
      fmt::print(stderr, "invar: {} is not resumed: {}\n", line.entry.id, error.message);
    } catch (const std::exception& error) {
      fmt::print(stderr, "invar: {} is not resumed: {}\n", line.entry.id, error.what());
    }
  }
}

// On a worker, at each admission: once an hour.
void Server::forget_old_lines() {
  const auto now = static_cast<int64_t>(std::time(nullptr));
  const std::lock_guard lock(noting_);
  if (now < next_forgetting_) return;
  next_forgetting_ = now + 3600;
  journal_->forget_before(now - options_.journal_keep);
  if (store_) store_->forget_before(now - options_.journal_keep);
}

}  // namespace invar::server
