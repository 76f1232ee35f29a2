#include "errors.h"

#include "base/json.h"
#include "frontend/anthropic.h"

namespace invar::server {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

HttpReply error_reply(const ApiError& error, std::string_view path) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? json::Value() : json::Value(text);
  };
  json::Value body = json::Object{{"error", json::Object{{"message", error.message},
                                                         {"type", error_type(error.status)},
                                                         {"param", or_null(error.param)},
                                                         {"code", or_null(error.code)}}}};
  if (path.starts_with("/v1/messages")) body = anthropic::error_body(error.status, error.message);
  HttpReply reply{.status = error.status, .body = json::dump(body)};
  if (error.status == 429 || error.status == 503) reply.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

}  // namespace invar::server
