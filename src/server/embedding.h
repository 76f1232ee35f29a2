// One request for numbers of several prompts on its way to its client: for vectors of texts, or
// log-probabilities of tokens. Each prompt is a request of the backend like any other. Lives on the
// serving thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "admission_slots.h"
#include "backend.h"
#include "base/json.h"
#include "http.h"

namespace invar::server {

// The vector of each request, or the log-probability of its one token.
using Numbers = std::vector<std::vector<float>>;

// The requests that an endpoint sends to the backend, and its answer.
struct NumbersAsked {
  std::vector<Request>
      requests;      // at least one; all pooled, or of one token with log-probabilities
  size_t bytes = 0;  // of memory that they and their answer hold
  std::function<std::string(const Numbers& numbers)> body;  // JSON
};

// The bytes that requests for vectors of so many numbers hold, with their answer.
size_t vectors_bytes(const std::vector<Request>& requests, int32_t vector_size, bool base64);

class Embedding {
 public:
  // The weights stay as they are while `lease` lives (Server::with_weights).
  Embedding(NumbersAsked asked, std::shared_ptr<Exchange> exchange,
            std::shared_ptr<HeldSlots> slots, std::shared_ptr<void> lease)
      : exchange(std::move(exchange)),
        asked_(std::move(asked)),
        slots_(std::move(slots)),
        lease_(std::move(lease)),
        vectors_(asked_.requests.size()) {}

  const std::shared_ptr<Exchange> exchange;
  bool is_counted = false;  // by AnswerStreams
  // Called when another text may begin; when the last vector is there; with a sentence, when one
  // cannot be.
  std::function<void()> more = [] {};
  std::function<void()> full;
  std::function<void(const std::string&)> failed;

  // The next text is computed from now on; null when none is left. So many at a time.
  const Request* next();
  static constexpr size_t kAtOnce = 32;

  void on_vector(size_t index, std::vector<float> numbers);
  void fail(const std::string& sentence);
  // Nobody wants it any more.
  void drop() { over_ = true; }

  std::vector<Request>& requests() { return asked_.requests; }
  const Numbers& vectors() const { return vectors_; }
  std::string body() const { return asked_.body(vectors_); }
  bool is_over() const { return over_; }

 private:
  NumbersAsked asked_;
  std::shared_ptr<HeldSlots> slots_;
  std::shared_ptr<void> lease_;
  Numbers vectors_;
  size_t there_ = 0, begun_ = 0;
  bool over_ = false;
};

}  // namespace invar::server
