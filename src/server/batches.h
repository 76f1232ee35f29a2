// Batches of requests on their way through the server: asks line after line, some at the same time,
// and keeps what becomes of each.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "http.h"
#include "journal/batch_store.h"

namespace invar::server {

// Lives on the serving thread.
class Batches {
 public:
  struct Threads {
    // Asks for an answer as if a client had sent the exchange's request.
    std::function<void(std::shared_ptr<Exchange>)> ask;
    std::function<void(std::function<void()> task)> pool, serving;
    // Calls the task in a second.
    std::function<std::shared_ptr<void>(std::function<void()> task)> later;
  };
  // Requests that are asked at the same time, of all batches.
  static constexpr size_t kAtOnce = 16;
  // Bytes of the answers of one batch; those behind them are errors.
  static constexpr int64_t kMostBytes = 512 << 20;

  Batches(BatchStore& store, Threads threads) : store_(store), threads_(std::move(threads)) {}

  // Goes on with batches that are in the store and were not ended: before others begin.
  void resume();
  void begin(const Batch& batch);
  // No more lines of it are asked.
  void cancel(const std::string& id);

 private:
  class Line;
  struct Running {
    Batch batch;
    int64_t last = -1;     // line that was asked
    size_t asked = 0;      // lines that have no answer yet
    int64_t bytes = 0;     // of the answers
    bool is_read = false;  // no line is left
    bool is_cancelled = false;
  };

  void go_on();
  void read_line(const std::string& id, int64_t after);
  void ask(const std::string& id, const BatchLine& line);
  void take(const std::string& id, const BatchLine& line, const HttpReply& reply);
  void settle(const std::string& id);
  void tell(const std::exception& error) const;

  BatchStore& store_;
  Threads threads_;
  std::unordered_map<std::string, Running> running_;
  std::vector<std::string> order_;                        // of their coming
  size_t next_ = 0;                                       // whose turn it is
  size_t asked_ = 0;                                      // lines that are read or asked
  std::vector<std::pair<std::string, BatchLine>> again_;  // lines that found no place
  std::shared_ptr<void> waits_;                           // until they are asked again
};

}  // namespace invar::server
