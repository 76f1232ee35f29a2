// An engine's process for tests: tokens are a function of seed and index, and it can be told how to
// go wrong. Usage: fake_engine [--context N] MODE SOCKET PULSES
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fake_engine.h"
#include "server/engine_process.h"

namespace invar::server {
namespace {

class FakeBackend final : public Backend {
 public:
  // context: 0: its own.
  FakeBackend(std::string mode, int context, int socket)
      : mode_(std::move(mode)), context_(context), socket_(socket) {}

  void start(BackendSink& sink) override {
    std::thread([this, &sink] { run(sink); }).detach();
  }
  void stop() override {}  // ends with its process
  BackendFacts facts() const override {
    BackendFacts facts{.identity = "fake", .block_size = 4};
    facts.weights = weights_;
    facts.max_model_len = context_ > 0 ? context_ : mode_ == "short" ? 500 : 1'000'000;
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
  void take_weights(const std::string& directory) override {
    if (mode_ == "keeps") fail("this engine keeps its weights");
    weights_ = {};
    std::memcpy(weights_.data(), directory.data(), std::min(directory.size(), weights_.size()));
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
      if (!jobs_.empty()) sink.on_step({});
      if (mode_ == "dies" && steps_ == 40) ::raise(SIGKILL);
      sink.on_step_end();
      if (mode_ == "garbage" && steps_ == 40) {
        const char rubbish[64] = "these are no lengths that a message can have";
        if (::write(socket_, rubbish, sizeof rubbish) < 0) ::_exit(1);
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
  const int context_, socket_;
  Digest weights_{};
  std::mutex mutex_;
  std::deque<Running> jobs_;
  std::atomic<int64_t> steps_ = 0;
};

}  // namespace
}  // namespace invar::server

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool is_told = words.size() == 5 && words[0] == "--context";
  if (!is_told && words.size() != 3) return 2;
  const std::string mode = words[words.size() - 3];
  const int socket = std::stoi(words[words.size() - 2]), pulses = std::stoi(words.back());
  if (mode == "never") return 1;
  const invar::server::SignOfLife alive(pulses);
  invar::server::FakeBackend backend(mode, is_told ? std::stoi(words[1]) : 0, socket);
  invar::server::serve_engine(socket, backend);
}
