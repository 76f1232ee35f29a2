// One line of JSON for each request that is over: --log-requests FILE.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "admission.h"
#include "metrics.h"

namespace invar::server {

// Used by one thread. Each line is written at once.
class RequestLog {
 public:
  // "-" is the error stream. Lines are added to a file that is there already. Throws Error when it
  // cannot be written.
  explicit RequestLog(const std::string& file);
  void add(const Admitted& admitted, const RequestTimes& times, int64_t prompt_tokens,
           int64_t tokens, const char* reason);

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      if (file != stderr) std::fclose(file);
    }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace invar::server
