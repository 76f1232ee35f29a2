// Responses that go on from earlier ones (previous_response_id): the journal keeps what each of
// them said, and which one it goes on from.
#include <algorithm>
#include <map>

#include "api.h"
#include "base/error.h"
#include "frontend/kept_request.h"

namespace invar::server {

namespace {

constexpr const char* kField = "previous_response_id";
// The bytes of all items of a conversation, which is read and rendered for each response that goes
// on from it.
constexpr int64_t kMaxConversationBytes = 4 << 20;

// The id of the response that a body goes on from, or nothing. A body that is no object is refused
// elsewhere.
std::optional<std::string> previous_of(const std::string& path, const json::Value& body) {
  if (path != "/v1/responses") return std::nullopt;
  const json::Value* id = body.find(kField);
  if (!id || id->is_null()) return std::nullopt;
  if (!id->is_string()) fail_usage("expected {} as a text, found {}", kField, id->type_name());
  return id->as_string();
}

void check_size(int64_t bytes) {
  if (bytes > kMaxConversationBytes)
    throw ApiError{400,
                   fmt::format("expected a conversation of at most {} bytes, found {}; \"store\": "
                               "false keeps none",
                               kMaxConversationBytes, bytes),
                   "", "input"};
}

bool is_named(const json::Value& item) {
  const json::Value* type = item.find("type");
  return type && *type == json::Value("item_reference");
}

std::string id_in(const json::Value& item) {
  const json::Value* id = item.find("id");
  if (!id || !id->is_string())
    throw ApiError{400, fmt::format("expected the id of an item in {}", json::excerpt(item)), "",
                   "input"};
  return id->as_string();
}

// The id of the response that said an item: msg_X, rs_X_0 and fc_X_0 are resp_X's.
std::string response_of(const std::string& item) {
  const size_t begin = std::min(item.find('_'), item.size());
  return "resp" + item.substr(begin, item.find('_', begin + 1) - begin);
}

}  // namespace

int64_t Server::bytes_read(const HttpRequest& request, const json::Value& body) const {
  const std::string* key = request.header("idempotency-key");
  const auto previous = previous_of(request.path, body);
  return (key ? journal_->bytes_of_key(options_.keys.owner(request), *key) : 0) +
         (previous ? journal_->bytes_of_conversation(*previous) : 0);
}

std::optional<std::string> Server::earlier_items(const std::string& owner, const std::string& path,
                                                 const json::Value& body) const {
  const std::optional<std::string> id = previous_of(path, body);
  if (!id) return std::nullopt;
  const ApiError not_found{400, fmt::format("there is no response {}", json::quoted(*id)),
                           "previous_response_not_found", kField};
  if (!journal_)
    throw ApiError{400, "previous_response_id needs a server with a journal (--journal)",
                   "unsupported_parameter", kField};
  const std::optional<JournalLine> line = journal_->find(*id);
  if (!line || line->entry.endpoint != path || !belongs_to(owner, line->entry)) throw not_found;
  check_size(journal_->bytes_of_conversation(*id));
  auto conversation = journal_->find_conversation(*id);
  if (conversation && !conversation->has_ended) {
    journal_->wait();  // its end may just have come
    conversation = journal_->find_conversation(*id);
  }
  const std::optional<JournalLine> now = journal_->find(*id);
  if (!now || !conversation) throw not_found;  // forgotten meanwhile, or never stored
  if (conversation->has_ended) return conversation->items;
  const bool has_ended = now->outcome.has_value();
  throw ApiError{has_ended ? 400 : 409,
                 fmt::format("the response {} {}", json::quoted(*id),
                             has_ended ? "was not answered to its end" : "is still being answered"),
                 "previous_response_incomplete", kField};
}

json::Array Server::output_of(const std::string& owner, const std::string& id) const {
  const std::optional<JournalLine> line = journal_->find(id);
  if (!line || line->entry.endpoint != "/v1/responses" || !belongs_to(owner, line->entry))
    return {};
  auto output = journal_->find_output(id);
  if (!output) {
    journal_->wait();  // it may just have come
    output = journal_->find_output(id);
  }
  return output ? json::parse(*output, "the journal").as_array() : json::Array();
}

json::Value Server::with_named_items(const std::string& owner, const std::string& path,
                                     json::Value body) const {
  const json::Value* input = path == "/v1/responses" ? body.find("input") : nullptr;
  if (!input || !input->is_array() || std::ranges::none_of(input->as_array(), is_named))
    return body;
  if (!journal_)
    throw ApiError{400,
                   "an item_reference needs a server with a journal (--journal); a client that "
                   "says \"store\": false sends the items themselves",
                   "unsupported_parameter", "input"};
  json::Array items;
  std::map<std::string, json::Array> outputs;  // by the response that said them
  int64_t read = 0, named = 0;                 // bytes of those, and of the items that are meant
  for (const json::Value& item : input->as_array()) {
    if (!is_named(item)) {
      items.push_back(item);
      continue;
    }
    const std::string id = id_in(item);
    const auto [output, is_new] = outputs.try_emplace(response_of(id));
    json::Array& said = output->second;
    if (is_new) {
      said = output_of(owner, output->first);
      check_size(read += std::ssize(json::dump(said)));
    }
    const auto found = std::ranges::find_if(said, [&](const json::Value& one) {
      const json::Value* name = one.find("id");
      return name && *name == json::Value(id);
    });
    if (found == said.end())
      throw ApiError{400, fmt::format("there is no item {}", json::quoted(id)), "item_not_found",
                     "input"};
    check_size(named += std::ssize(json::dump(*found)));
    items.push_back(*found);
  }
  body.set("input", std::move(items));
  return body;
}

std::optional<Said> Server::said_by(const Admitted& admitted, const json::Value& body) const {
  const json::Value* store = body.find("store");
  const bool is_stored = !store || *store != json::Value(false);
  if (admitted.request.endpoint != openai::Endpoint::responses || !is_stored) return std::nullopt;
  Said said{.previous = previous_of(admitted.entry.endpoint, body).value_or(""),
            .input = json::dump(openai::kept_items(body))};
  check_size(journal_->bytes_of_conversation(said.previous) + std::ssize(said.input));
  return said;
}

void Server::keep_output(const AnswerStream& stream) {
  const json::Value* output = stream.output();
  if (journal_ && output) journal_->keep(stream.admitted().entry.id, json::dump(*output));
}

JournalLine Server::response_line(const HttpRequest& request, const std::string& id) const {
  auto line = journal_ ? journal_->find(id) : std::nullopt;
  if (!line || line->entry.endpoint != "/v1/responses" ||
      !belongs_to(options_.keys.owner(request), line->entry))
    throw ApiError{404, fmt::format("there is no response {}", json::quoted(id)),
                   "response_not_found", "response_id"};
  return *std::move(line);
}

// GET /v1/responses/{id}/input_items: what the response was asked beside what came before.
void Server::input_items(std::shared_ptr<Exchange> exchange) {
  const std::string& path = exchange->request.path;
  const size_t end = path.rfind('/'), begin = path.rfind('/', end - 1) + 1;
  const std::string id = path.substr(begin, end - begin);
  reply_later(slow(exchange->request), exchange, [this, exchange, id]() -> json::Value {
    response_line(exchange->request, id);
    const auto input = journal_->find_input(id);
    if (!input)
      throw ApiError{404, fmt::format("the input of {} was not stored", json::quoted(id)),
                     "response_not_found", "response_id"};
    const json::Value data = json::parse(*input, "the journal");
    return json::Object{{"object", "list"}, {"data", data}, {"has_more", false}};
  });
}

// DELETE /v1/responses/{id}: of one that has ended. Others go on from it as before, since they need
// what it said.
void Server::forget_response(std::shared_ptr<Exchange> exchange) {
  const std::string& path = exchange->request.path;
  const std::string id = path.substr(path.rfind('/') + 1);
  reply_later(reading(exchange->request), exchange, [this, exchange, id]() -> json::Value {
    if (!response_line(exchange->request, id).outcome)
      throw ApiError{409, fmt::format("the response {} is still being answered", json::quoted(id)),
                     "response_incomplete", "response_id"};
    journal_->forget_and_wait(id);
    return json::Object{{"id", id}, {"object", "response"}, {"deleted", true}};
  });
}

}  // namespace invar::server
