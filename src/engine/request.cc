#include "engine/request.h"

#include <utility>

namespace invar {

void check_params(Request& request, int32_t vocab) {
  if (std::exchange(request.params_are_checked, true)) return;
  request.params = checked(std::move(request.params), vocab);
}

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::none:
      return "none";
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::aborted:
      return "abort";
    case FinishReason::failed:
      return "failed";
  }
  return "?";
}

}  // namespace invar
