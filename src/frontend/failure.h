// The message to a client whose answer failed.
#pragma once

#include <string>

namespace invar {

struct Failure {
  int status = 500;  // of a reply: 400 and more where the request is the cause, 500 where it is not
  std::string message;
  std::string code;  // "schema_not_followed"; or empty

  // The word of OpenAI's protocol for its kind.
  const char* type() const { return status < 500 ? "invalid_request_error" : "server_error"; }
};

// The code of an answer that does not follow its schema where it is checked at its end.
inline constexpr const char* kSchemaNotFollowed = "schema_not_followed";

// Reads an engine's sentence. The request is the cause where it fails each time that it is sent
// (400), and where its answer does not follow the schema (422).
Failure failure_of(const std::string& error);

}  // namespace invar
