// Errors as OpenAI's clients read them.
#pragma once

#include <string>

#include "base/error.h"
#include "base/json.h"
#include "http.h"

namespace invar::server {

// A request that is answered with an error: thrown, and turned into a reply at one place.
struct ApiError {
  int status = 400;
  std::string message;
  std::string code;   // "model_not_found"; or empty
  std::string param;  // the field that is wrong; or empty
};

// A refusal of what a body asks for: `param` is the field that the sentence names, and `code` says
// as OpenAI does what is wrong with it (missing_required_parameter, unsupported_parameter,
// invalid_type, invalid_value). Sentences name the field that they speak of; `body` says which
// words are fields. Both are empty where the sentence is of none.
ApiError refusal_of(std::string sentence, const json::Value& body);
// The refusal of a request by an error. A FieldError whose sentence names no field has the error's.
ApiError refusal_of(const Error& error, const json::Value& body);

// The message to a request whose deadline has passed.
inline constexpr const char* kTooLate =
    "the answer was not ready in the time that the request gave";

// The error of an answer that was computed and could not be written.
ApiError unwritten(const std::exception& error);

// The "type" that goes with a status.
const char* error_type(int status);
// In the form of the API that `path` belongs to.
HttpReply error_reply(const ApiError& error, std::string_view path = {});

}  // namespace invar::server
