// What of Anthropic's API is not an answer: counting the tokens of one.
#include <ctime>

#include "api.h"
#include "base/ends.h"
#include "base/error.h"

namespace invar::server {

int64_t Admission::count_tokens(const HttpRequest& http) const {
  json::Value body = parse_body(http.body);
  if (!body.is_object()) fail_usage("expected an object, found {}", body.type_name());
  if (!body.find("max_tokens")) body.set("max_tokens", 1);  // needed only for an answer
  const openai::Request request =
      read({.created = static_cast<int64_t>(std::time(nullptr)), .endpoint = "/v1/messages"}, body,
           std::nullopt, Purpose::count);
  check_model(request.model);
  return std::ssize(encode(request, first_of(request.prompts)));
}

// POST /v1/messages/count_tokens
void Server::count_tokens(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  reply_later(tokens_, exchange, [this, &request]() -> json::Value {
    return json::Object{{"input_tokens", admission_.count_tokens(request)}};
  });
}

}  // namespace invar::server
