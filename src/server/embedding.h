// One request for embeddings on its way to its client: each of its texts is a job of the backend
// like any other. Lives on the serving thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "http.h"
#include "places.h"

namespace invar::server {

// How its vectors are shown.
struct EmbeddingForm {
  bool base64 = false;                // else as numbers
  std::optional<int32_t> dimensions;  // only the first so many
  bool normalize = false;             // to length 1
};

class Embedding {
 public:
  // The weights stay as they are while `turn` lives (Server::with_weights).
  Embedding(std::vector<Request> jobs, const EmbeddingForm& form,
            std::shared_ptr<Exchange> exchange, std::shared_ptr<PlacesHeld> places,
            std::shared_ptr<void> turn)
      : form(form),
        exchange(std::move(exchange)),
        jobs_(std::move(jobs)),
        places_(std::move(places)),
        turn_(std::move(turn)),
        vectors_(jobs_.size()) {}

  const EmbeddingForm form;
  const std::shared_ptr<Exchange> exchange;
  // Called when the last vector is there; with a sentence, when one cannot be.
  std::function<void()> full;
  std::function<void(const std::string&)> failed;

  void on_vector(size_t job, std::vector<float> numbers);
  void fail(const std::string& sentence);
  // Nobody wants it any more.
  void drop() { over_ = true; }

  std::vector<Request>& jobs() { return jobs_; }
  const std::vector<std::vector<float>>& vectors() const { return vectors_; }
  bool is_over() const { return over_; }

 private:
  std::vector<Request> jobs_;
  std::shared_ptr<PlacesHeld> places_;
  std::shared_ptr<void> turn_;
  std::vector<std::vector<float>> vectors_;
  size_t there_ = 0;
  bool over_ = false;
};

}  // namespace invar::server
