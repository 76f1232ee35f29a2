// The engine's side of engine_process.h.
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "engine_process.h"

namespace invar::server {

namespace {

// Sends outputs from a thread of its own: neither the engine nor who takes orders ever waits for
// the server, so the two processes cannot wait for each other.
class Outbox final : public BackendSink {
 public:
  Outbox(FrameSocket& socket, const Backend& backend) : socket_(socket), backend_(backend) {
    std::thread([this] { send_all(); }).detach();  // ends with the process
  }

  void on_token(const TokenOutput& output) override { add(to_bytes(output)); }
  void on_prompt(const PromptOutput& output) override { add(to_bytes(output)); }
  void on_pooled(const PooledOutput& output) override { add(to_bytes(output)); }
  void on_begun(const RequestBegun& begun) override {
    const std::lock_guard lock(mutex_);
    begun_.push_back(begun);
  }
  void on_step(const StepRecord& step) override {
    const std::lock_guard lock(mutex_);
    steps_.push_back(step);
  }
  void on_step_end() override {
    const BackendStats stats = backend_.stats();
    const std::lock_guard lock(mutex_);
    // Also when requests were cancelled and there is nothing else to say.
    const int32_t live = stats.running + stats.waiting;
    const bool is_news = std::exchange(live_, live) != live;
    if (!is_news && outputs_.empty() && steps_.empty()) return;
    flush_ = true;
    woken_.notify_one();
  }
  // The server starts another engine, which computes what this one has not sent.
  void on_failure(const std::string& sentence) override {
    fmt::print(stderr, "invar: the engine's process: {}\n", sentence);
    std::_Exit(1);
  }
  // From any thread.
  void refuse(int64_t request, const char* sentence) {
    on_token({.request = request, .finish = FinishReason::failed, .error = sentence});
    on_step_end();
  }

 private:
  void add(std::string bytes) {
    const std::lock_guard lock(mutex_);
    outputs_.push_back(std::move(bytes));
  }

  void send_all() {
    std::vector<std::string> outputs;
    std::vector<RequestBegun> begun;
    std::vector<StepRecord> steps;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        woken_.wait(lock, [this] { return flush_; });
        flush_ = false;
        outputs.swap(outputs_);
        begun.swap(begun_);
        steps.swap(steps_);
      }
      socket_.send(static_cast<uint8_t>(Message::outputs),
                   outputs_bytes(outputs, begun, steps, backend_.stats()));
      outputs.clear();
      begun.clear();
      steps.clear();
    }
  }

  FrameSocket& socket_;
  const Backend& backend_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::vector<std::string> outputs_;
  std::vector<RequestBegun> begun_;
  std::vector<StepRecord> steps_;
  bool flush_ = false;
  int32_t live_ = 0;  // requests, at the end of the last step
};

// The reply to an order of several kinds, or the sentence that it failed with.
template <typename Reply, typename Work>
Reply replied(Reply reply, Work work) {
  try {
    work(reply);
  } catch (const Error& error) {
    reply.error = error.what();
  }
  return reply;
}

// Those for the answers to one prompt come one after another, each with all of it.
void share(Request& request, Request& last) {
  const auto same = [](auto& one, const auto& other) {
    if (one == other) one = other;
  };
  same(request.prompt, last.prompt);
  same(request.structured_output, last.structured_output);
  same(request.cache_salt, last.cache_salt);
  same(request.prediction, last.prediction);
  same(request.params.logit_bias, last.params.logit_bias);
  same(request.params.stop_token_ids, last.params.stop_token_ids);
  same(request.params.allowed_token_ids, last.params.allowed_token_ids);
  same(request.params.bad_words, last.params.bad_words);
  last = request;
}

void take_order(const Frame& frame, Backend& backend, Outbox& outbox, FrameSocket& socket,
                Request& last) {
  if (frame.kind == static_cast<uint8_t>(Message::cancel))
    return backend.cancel(cancel_from(frame.bytes));
  if (frame.kind == static_cast<uint8_t>(Message::take)) {
    const auto taken = replied(Taken{}, [&](Taken& t) {
      backend.take_weights(frame.bytes);
      t.weights = backend.facts().weights;
    });
    socket.send(static_cast<uint8_t>(Message::taken), to_bytes(taken));
    return;
  }
  if (frame.kind == static_cast<uint8_t>(Message::sleep) ||
      frame.kind == static_cast<uint8_t>(Message::wake)) {
    const auto done = replied(Taken{}, [&](Taken&) {
      frame.kind == static_cast<uint8_t>(Message::sleep) ? backend.sleep(sleep_from(frame.bytes))
                                                         : backend.wake(wake_from(frame.bytes));
    });
    socket.send(static_cast<uint8_t>(Message::taken), to_bytes(done));
    return;
  }
  if (frame.kind != static_cast<uint8_t>(Message::submit))
    fail("the server: expected a request or a cancellation, found a message of kind {}",
         frame.kind);
  Request request = request_from(frame.bytes);
  const int64_t id = request.id;
  share(request, last);
  try {
    backend.submit(std::move(request));
  } catch (const UsageError& error) {
    outbox.refuse(id, error.what());
  } catch (const FormsFull& error) {
    outbox.refuse(id, error.what());
  }
}

}  // namespace

void serve_engine(int file, Backend& backend) {
  FrameSocket socket{Socket(file)};
  Outbox outbox(socket, backend);
  int status = 0;
  try {
    if (!socket.send(static_cast<uint8_t>(Message::hello),
                     to_bytes(Hello{backend.facts(), backend.stats()})))
      std::_Exit(0);
    backend.start(outbox);
    Request last;
    while (const std::optional<Frame> frame = socket.receive())
      take_order(*frame, backend, outbox, socket, last);
  } catch (const std::exception& error) {
    fmt::print(stderr, "invar: the engine's process: {}\n", error.what());
    status = 1;
  }
  std::_Exit(status);  // in mid-step: nothing is left to be done for anyone
}

}  // namespace invar::server
