// One request for embeddings on its way to its client: each of its texts is a request of the
// backend like any other. Lives on the serving thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "admission_slots.h"
#include "backend.h"
#include "http.h"

namespace invar::server {

// How its vectors are shown.
struct EmbeddingFormat {
  bool base64 = false;                // else as numbers
  std::optional<int32_t> dimensions;  // only the first so many
  bool normalize = false;             // to length 1
};

class Embedding {
 public:
  // The weights stay as they are while `lease` lives (Server::with_weights).
  Embedding(std::vector<Request> requests, const EmbeddingFormat& form,
            std::shared_ptr<Exchange> exchange, std::shared_ptr<HeldSlots> slots,
            std::shared_ptr<void> lease)
      : form(form),
        exchange(std::move(exchange)),
        requests_(std::move(requests)),
        slots_(std::move(slots)),
        lease_(std::move(lease)),
        vectors_(requests_.size()) {}

  const EmbeddingFormat form;
  const std::shared_ptr<Exchange> exchange;
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

  std::vector<Request>& requests() { return requests_; }
  const std::vector<std::vector<float>>& vectors() const { return vectors_; }
  bool is_over() const { return over_; }

 private:
  std::vector<Request> requests_;
  std::shared_ptr<HeldSlots> slots_;
  std::shared_ptr<void> lease_;
  std::vector<std::vector<float>> vectors_;
  size_t there_ = 0, begun_ = 0;
  bool over_ = false;
};

}  // namespace invar::server
