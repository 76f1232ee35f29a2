// CHECK(condition, message): a programming error stops the process with file, line and message.
// User errors (files, options, requests) throw Error instead; see error.h.
#pragma once

namespace invar {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* message);

}  // namespace invar

#define CHECK(condition, message) \
  ((condition) ? (void)0 : ::invar::check_failed(__FILE__, __LINE__, #condition, message))
