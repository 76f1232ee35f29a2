#include "frontend/failure.h"

#include "sampling/constraint_cursor.h"
#include "sampling/grammar/schema_check.h"
#include "sampling/sampler.h"

namespace invar {

Failure failure_of(const std::string& error) {
  if (error == kFormTooLarge) return {400, error, ""};
  if (error == sampling::kNothingAllowed)
    return {400, error + ": what the request allows and excludes leaves nothing", ""};
  if (grammar::SchemaCheck::is_fault(error)) return {422, error, kSchemaNotFollowed};
  return {500, error, ""};
}

}  // namespace invar
