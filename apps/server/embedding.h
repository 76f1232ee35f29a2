// One request for embeddings on its way to its client: each of its texts is a job of the backend
// like any other. Lives on the serving thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend.h"
#include "http.h"

namespace invar::server {

class Embedding {
 public:
  // The weights stay as they are while `turn` lives (Server::with_weights).
  Embedding(std::vector<Job> jobs, std::shared_ptr<Exchange> exchange, std::shared_ptr<void> turn)
      : jobs_(std::move(jobs)),
        exchange_(std::move(exchange)),
        turn_(std::move(turn)),
        vectors_(jobs_.size()) {}
  // Called when the last vector is there; with a sentence, when one cannot be.
  std::function<void()> full;
  std::function<void(const std::string&)> failed;

  void on_vector(size_t job, std::vector<float> numbers);
  void fail(const std::string& sentence);
  // Nobody wants it any more.
  void drop() { over_ = true; }

  std::vector<Job>& jobs() { return jobs_; }
  Exchange& exchange() const { return *exchange_; }
  const std::shared_ptr<Exchange>& shared_exchange() const { return exchange_; }
  const std::vector<std::vector<float>>& vectors() const { return vectors_; }
  bool is_over() const { return over_; }

 private:
  std::vector<Job> jobs_;
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<void> turn_;
  std::vector<std::vector<float>> vectors_;
  size_t there_ = 0;
  bool over_ = false;
};

}  // namespace invar::server
