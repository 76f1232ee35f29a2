#include "frontend/failure.h"

#include "sampling/constraint_cursor.h"
#include "sampling/sampler.h"

namespace invar {

std::optional<std::string> fault_of_request(const std::string& error) {
  if (error == kFormTooLarge) return error;
  if (error == sampling::kNothingAllowed)
    return error + ": what the request allows and excludes leaves nothing";
  return std::nullopt;
}

const char* code_of_failure(const std::string& error, const char* otherwise) {
  return fault_of_request(error) ? kInvalidRequest : otherwise;
}

std::string sentence_of_failure(const std::string& error) {
  return fault_of_request(error).value_or(error);
}

}  // namespace invar
