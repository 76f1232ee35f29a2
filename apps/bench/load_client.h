// Sends requests to an OpenAI-compatible server at given times and keeps what comes back with the
// time of every event. One thread; bodies are only cut into events while it runs and read when all
// is over, so that the client's own work changes the measurement little.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace invar::cli {

struct LoadRequest {
  double start = 0;  // seconds after the beginning; not before
  std::string body;  // JSON
};

struct LoadEvent {
  double time = 0;   // seconds after the beginning
  std::string data;  // of a server-sent event
};

struct LoadResult {
  std::string error;              // empty: the answer is complete
  double sent = 0, ended = 0;     // seconds after the beginning
  std::vector<LoadEvent> events;  // without the closing [DONE]
};

struct LoadTarget {
  std::string url;       // http://host:port/v1/completions
  std::string api_key;   // empty: none is sent
  double timeout = 600;  // seconds for one request
};

// The body of one GET. Throws Error when the server cannot be reached or does not answer with 200.
std::string http_get(const LoadTarget& target);

// Sends every request when its time has come and less than `max_concurrency` (0: any number) are
// under way; results in the order of the requests. `progress` hears how many have ended.
std::vector<LoadResult> run_load(const LoadTarget& target, const std::vector<LoadRequest>& requests,
                                 int max_concurrency, const std::function<void(size_t)>& progress);

}  // namespace invar::cli
