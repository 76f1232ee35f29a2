// The message to a client whose answer failed.
#pragma once

#include <optional>
#include <string>

namespace invar {

// Where the request is the cause, so that it fails again each time it is sent: the sentence. None:
// the model or the server is.
std::optional<std::string> fault_of_request(const std::string& error);

// The code that a stream fails with then (openai::StreamWriter::fail).
inline constexpr const char* kInvalidRequest = "invalid_request_error";
// The code for such an error, or else `otherwise`.
const char* code_of_failure(const std::string& error, const char* otherwise);
// The sentence of a stream that failed, of either kind.
std::string sentence_of_failure(const std::string& error);

}  // namespace invar
