#include "errors.h"

#include <algorithm>
#include <string_view>

#include "frontend/anthropic.h"
#include "frontend/body_fields.h"
#include "frontend/ollama.h"

namespace invar::server {

namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz_0123456789";
// Fields that are words of their own, too.
constexpr std::string_view kWords[] = {"model", "user", "text", "store"};

// The word that begins at `at`, or nothing.
std::string_view word_at(std::string_view sentence, size_t at) {
  return sentence.substr(at, sentence.find_first_not_of(kLetters, at) - at);
}

// The field of the body that the sentence names first; what was found there is the client's text.
std::string field_in(std::string_view sentence, const json::Value& body) {
  const std::string_view ours = sentence.substr(0, sentence.find(", found"));
  for (size_t at = 0; at < ours.size(); ++at) {
    const std::string_view word = word_at(ours, at);
    if (word.empty()) continue;
    const bool is_word = std::ranges::find(kWords, word) != std::end(kWords);
    const bool is_first = at == 9 && ours.starts_with("expected ");
    const bool is_quoted = at > 0 && ours[at - 1] == '"';
    if (body.is_object() && body.find(word) && (is_quoted || !is_word || is_first))
      return std::string(word);
    at += word.size();
  }
  return {};
}

bool ends_with_a_type(std::string_view sentence) {
  for (const char* type : {"string", "number", "array", "object", "boolean", "integer", "null"})
    if (sentence.ends_with(type)) return true;
  return false;
}

const char* what_is_wrong(std::string_view sentence) {
  if (sentence.find("is not supported") != sentence.npos) return "unsupported_parameter";
  return ends_with_a_type(sentence) ? "invalid_type" : "invalid_value";
}

}  // namespace

ApiError refusal_of(std::string sentence, const json::Value& body) {
  ApiError error{400, std::move(sentence), "", ""};
  const std::string_view said = error.message;
  constexpr std::string_view kMissing = "expected \"";
  if (said.starts_with(kMissing) && said.find("\" in ") != said.npos) {
    error.param = word_at(said, kMissing.size());
    error.code = "missing_required_parameter";
    return error;
  }
  error.param = field_in(said, body);
  if (!error.param.empty()) error.code = what_is_wrong(said);
  return error;
}

ApiError refusal_of(const Error& error, const json::Value& body) {
  ApiError refusal = refusal_of(std::string(error.what()), body);
  const auto* of_field = dynamic_cast<const FieldError*>(&error);
  if (!of_field || of_field->field().empty() || !refusal.param.empty()) return refusal;
  refusal.param = of_field->field();
  refusal.code = what_is_wrong(refusal.message);
  return refusal;
}

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
  if (path.starts_with("/api/")) body = ollama::error_body(error.message);
  if (path.starts_with("/v1/messages")) body = anthropic::error_body(error.status, error.message);
  HttpReply reply{.status = error.status, .body = json::dump(body)};
  if (error.status == 429 || error.status == 503) reply.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

ApiError unwritten(const std::exception& error) {
  return {500, std::string("the answer cannot be written: ") + error.what()};
}

}  // namespace invar::server
