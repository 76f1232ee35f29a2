// An engine's process for tests: tokens are a function of seed and index, and it can be told how to
// go wrong. Usage: fake_engine MODE SOCKET
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "fake_engine.h"
#include "server/engine_process.h"

namespace invar::server {
namespace {

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(std::string mode) : mode_(std::move(mode)) {}

  void start(BackendSink& sink) override {
    std::thread([this, &sink] { run(sink); }).detach();
  }
  void stop() override {}  // ends with its process
  BackendFacts facts() const override {
    BackendFacts facts{.identity = "fake"};
    const pid_t process = ::getpid();
    if (mode_ == "other-weights") std::memcpy(facts.weights.data(), &process, sizeof process);
    return facts;
  }
  BackendStats stats() const override { return {.steps = steps_}; }
  void submit(Request request) override {
    if (mode_ == "poison" && request.params.seed == kPoison) ::raise(SIGKILL);
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(request), 0});
  }
  void cancel(int64_t id) override {
    const std::lock_guard lock(mutex_);
    std::erase_if(jobs_, [&](const Running& running) { return running.request.id == id; });
  }

 private:
  struct Running {
    Request request;
    int32_t index;
  };

  void run(BackendSink& sink) {
    while (true) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      const std::lock_guard lock(mutex_);
      for (Running& running : jobs_) step(running, sink);
      std::erase_if(jobs_, [](const Running& r) { return r.index == r.request.params.max_tokens; });
      ++steps_;
      if (mode_ == "dies" && steps_ == 40) ::raise(SIGKILL);
      sink.on_step_end();
      if (mode_ == "garbage" && steps_ == 40) {
        const char rubbish[64] = "these are no lengths that a message can have";
        if (::write(3, rubbish, sizeof rubbish) < 0) ::_exit(1);
      }
    }
  }

  void step(Running& running, BackendSink& sink) {
    TokenOutput out{.request = running.request.id, .index = running.index};
    const uint64_t seed =
        running.request.params.seed + (mode_ == "drifts" ? static_cast<uint64_t>(::getpid()) : 0);
    out.token = fake_token(seed, running.index++);
    out.logprobs = TokenLogprobs{{out.token, -0.5f, 1}, {{3, -1.5f, 2}}};
    if (running.index == running.request.params.max_tokens) out.finish = FinishReason::length;
    sink.on_token(out);
  }

  const std::string mode_;
  std::mutex mutex_;
  std::deque<Running> jobs_;
  std::atomic<int64_t> steps_ = 0;
};

}  // namespace
}  // namespace invar::server

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (std::strcmp(argv[1], "never") == 0) return 1;
  invar::server::FakeBackend backend(argv[1]);
  invar::server::serve_engine(std::atoi(argv[2]), backend);
}
