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
#include "frontend/questions.h"
#include "http.h"
#include "journal/journal.h"

namespace invar::server {

class Embedding {
 public:
  using Body = std::function<std::string(const Numbers& numbers)>;  // JSON
  // The weights stay as they are while `lease` lives (Server::with_weights).
  Embedding(std::vector<Request> requests, Body body, std::shared_ptr<Exchange> exchange,
            std::shared_ptr<HeldSlots> slots, std::shared_ptr<void> lease)
      : exchange(std::move(exchange)),
        requests_(std::move(requests)),
        body_(std::move(body)),
        slots_(std::move(slots)),
        lease_(std::move(lease)),
        vectors_(requests_.size()) {}

  const std::shared_ptr<Exchange> exchange;
  bool is_counted = false;  // by AnswerStreams
  // Called when another text may begin; when the last vector is there; with a sentence, when one
  // cannot be.
  std::function<void()> more = [] {};
  std::function<void()> full;
  std::function<void(const std::string&)> failed;
  // Called once, when nothing more is computed of it; not where the engine failed.
  std::function<void(Outcome)> ended = [](Outcome) {};

  // The next text is computed from now on; null when none is left. So many at a time.
  const Request* next();
  static constexpr size_t kAtOnce = 32;

  void on_vector(size_t index, std::vector<float> numbers);
  void fail(const std::string& sentence);
  // Its slots and memory, before its client has the answer.
  void give_back() { slots_->give_back(); }
  // Nobody wants it any more.
  void drop() { over_ = true; }

  std::vector<Request>& requests() { return requests_; }
  std::string body() const { return body_(vectors_); }
  bool is_over() const { return over_; }
  Outcome outcome() const { return outcome_; }

 private:
  std::vector<Request> requests_;
  Body body_;
  std::shared_ptr<HeldSlots> slots_;
  std::shared_ptr<void> lease_;
  Numbers vectors_;
  size_t there_ = 0, begun_ = 0;
  bool over_ = false;
  Outcome outcome_ = Outcome::aborted;
};

}  // namespace invar::server
