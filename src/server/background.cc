// Responses that are computed while nobody waits for them, and the number of tokens of an input.
#include "api.h"
#include "base/error.h"
#include "frontend/responses.h"
#include "relay.h"

namespace invar::server {

std::shared_ptr<Relay> Server::waiting_relay(const Admitted& admitted) {
  const bool is_kept = admitted.request.background && admitted.request.stream;
  return is_kept ? Relay::make_kept() : Relay::make();
}

// Begins a request that stands in the journal. A response in the background waits for whoever asks
// for it; as a stream it is kept, and this client is the first that reads it.
void Server::submit_written(std::shared_ptr<Exchange> exchange, std::shared_ptr<Admitted> admitted,
                            const WeightsLease& lease) {
  if (!admitted->request.background) return submit(std::move(exchange), std::move(admitted), lease);
  http_.post([this, exchange = std::move(exchange), admitted = std::move(admitted), lease] {
    const auto relay = waiting_relay(*admitted);
    waiting_.emplace(admitted->entry.id, relay);
    exchange->drop_body();
    if (relay->is_kept())
      relay->connect(exchange, 0);
    else
      exchange->reply({.body = json::dump(
                           openai::unanswered_body(admitted->request, admitted->head, "queued"))});
    submit(relay, admitted, lease);
  });
}

// Answers that a response in the background is being computed or was cancelled, or returns false.
bool Server::tell_background(Exchange& exchange, const Admitted& admitted,
                             const std::optional<Outcome>& outcome) {
  if (!admitted.request.background) return false;
  const bool is_cancelled = outcome == Outcome::aborted;
  if (!is_cancelled && !waiting_.contains(admitted.entry.id)) return false;
  exchange.reply(
      {.body = json::dump(openai::unanswered_body(admitted.request, admitted.head,
                                                  is_cancelled ? "cancelled" : "in_progress"))});
  return true;
}

// POST /v1/responses/{id}/cancel. One that has ended stays as it is.
void Server::cancel_response(std::shared_ptr<Exchange> exchange) {
  const std::string& path = exchange->request.path;
  const size_t end = path.rfind('/'), begin = path.rfind('/', end - 1) + 1;
  const std::string id = path.substr(begin, end - begin);
  with_weights([=, this](const WeightsLease& lease) {
    pool_.post(slow(exchange->request), [=, this] {
      guarded(exchange, [&] {
        const JournalLine line = response_line(exchange->request, id);
        const auto admitted = std::make_shared<Admitted>(readmit(line));
        if (!admitted->request.background)
          throw ApiError{400, "expected a response with \"background\": true, found another",
                         "invalid_value", "response_id"};
        if (line.outcome) return go_on(exchange, line, false, 0, lease);
        http_.post([this, exchange, admitted] { cancel_waiting(exchange, *admitted); });
      });
    });
  });
}

void Server::cancel_waiting(const std::shared_ptr<Exchange>& exchange, const Admitted& admitted) {
  const auto found = waiting_.find(admitted.entry.id);
  const std::shared_ptr<Relay> relay = found == waiting_.end() ? nullptr : found->second;
  const auto tell = relay ? std::exchange(relay->on_gone, nullptr) : nullptr;
  if (!tell)
    return refuse(*exchange, {409, "the response has just ended or is about to begin: ask again",
                              "response_incomplete", "response_id"});
  tell();
  relay->cut_off();
  const HttpReply reply{
      .body = json::dump(openai::unanswered_body(admitted.request, admitted.head, "cancelled"))};
  pool_.post(slow(exchange->request), [this, exchange, reply] {
    journal_->wait();  // whoever asks for it now finds that
    http_.post([exchange, reply] { exchange->reply(reply); });
  });
}

// POST /v1/responses/input_tokens
void Server::count_input(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  reply_with_tokens(exchange, [this, &request]() -> json::Value {
    constexpr const char* kResponses = "/v1/responses";
    const std::string owner = options_.keys.owner(request);
    json::Value body = with_named_items(owner, kResponses, parse_body(request.body));
    const auto earlier = earlier_items(owner, kResponses, body);
    return json::Object{
        {"object", "response.input_tokens"},
        {"input_tokens", admission_.count_tokens(kResponses, std::move(body), earlier)}};
  });
}

}  // namespace invar::server
