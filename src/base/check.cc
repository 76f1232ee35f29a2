#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace invar {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "%s:%d: internal error: %s (%s)\n", file, line, message, condition);
  std::abort();
}

}  // namespace invar
