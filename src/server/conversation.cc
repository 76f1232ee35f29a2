// Responses that go on from earlier ones (previous_response_id): the journal keeps what was said,
// as items of an input, when a response has ended.
#include "api.h"
#include "base/error.h"

namespace invar::server {

namespace {

// The id of the response that a body goes on from, or nothing. A body that is no object is refused
// elsewhere.
std::optional<std::string> previous_of(const JournalEntry& entry) {
  if (entry.endpoint != "/v1/responses") return std::nullopt;
  const json::Value body = parse_body(entry.request);
  const json::Value* id = body.find("previous_response_id");
  if (!id || id->is_null()) return std::nullopt;
  if (!id->is_string())
    fail_usage("expected previous_response_id as a text, found {}", id->type_name());
  return id->as_string();
}

// Whether later responses may go on from this one: not if it asked for "store": false.
bool is_stored(const JournalEntry& entry) {
  const json::Value body = parse_body(entry.request);
  const json::Value* store = body.find("store");
  return !store || *store != json::Value(false);
}

}  // namespace

// On the worker. Throws ApiError where there is no such response or it did not end well.
std::optional<std::string> Server::earlier_items(const JournalEntry& entry) const {
  const std::optional<std::string> id = previous_of(entry);
  if (!id) return std::nullopt;
  const char* field = "previous_response_id";
  const ApiError not_found{400, fmt::format("there is no response {}", json::quoted(*id)),
                           "previous_response_not_found", field};
  if (!journal_)
    throw ApiError{400, "previous_response_id needs a server with a journal (--journal)", "",
                   field};
  const std::optional<JournalLine> line = journal_->find(*id);
  if (!line || line->entry.endpoint != "/v1/responses" || !belongs_to(entry.owner, line->entry) ||
      !is_stored(line->entry))
    throw not_found;
  auto items = journal_->find_conversation(*id);
  if (items) return items;
  journal_->wait();  // its end may just have come
  items = journal_->find_conversation(*id);
  if (items) return items;
  const std::optional<JournalLine> now = journal_->find(*id);
  if (!now) throw not_found;  // the journal has forgotten it meanwhile
  const bool has_ended = now->outcome.has_value();
  throw ApiError{has_ended ? 400 : 409,
                 fmt::format("the response {} {}", json::quoted(*id),
                             has_ended ? "was not answered to its end" : "is still being answered"),
                 "previous_response_incomplete", field};
}

// The same for an answer that is computed again: its prompt is known, so what is no longer there is
// only missed by requests that go on from this one.
std::optional<std::string> Server::earlier_items_if_there(const JournalEntry& entry) const {
  const std::optional<std::string> id = previous_of(entry);
  return id ? journal_->find_conversation(*id) : std::nullopt;
}

// When a response has ended: what a later one can go on from.
void Server::keep_conversation(const Answering& answering) {
  const json::Value* output = answering.output();
  const Admitted& admitted = answering.admitted();
  if (!journal_ || !output || !is_stored(admitted.entry)) return;
  json::Array items;
  if (!admitted.request.asked_previous.is_null()) {
    if (!admitted.earlier) return;
    items = json::parse(*admitted.earlier, "a conversation").as_array();
  }
  for (json::Value& item : openai::input_items(parse_body(admitted.entry.request)))
    items.push_back(std::move(item));
  items.insert(items.end(), output->as_array().begin(), output->as_array().end());
  journal_->keep(admitted.entry.id, json::dump(std::move(items)));
}

}  // namespace invar::server
