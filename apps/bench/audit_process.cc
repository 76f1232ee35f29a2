// An audit's requests in the engine's process of a server, which may be killed in the middle: the
// backend starts another one, which computes what is not finished again.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>

#include "audit_runs.h"
#include "base/error.h"
#include "server/engine_process.h"

namespace invar::cli {

namespace {

constexpr std::chrono::seconds kLongest{300};

// Takes the answers on the backend's thread; others wait.
class Waiting final : public server::BackendSink {
 public:
  explicit Waiting(size_t requests) : open_(requests) {}

  void on_token(const TokenOutput& output) override {
    const std::lock_guard lock(mutex_);
    if (output.error) failure_ = output.error;
    collector_.on_token(output);
    ++tokens_;
    if (output.finish != FinishReason::none) --open_;
    changed_.notify_all();
  }
  void on_prompt(const PromptOutput& output) override {
    const std::lock_guard lock(mutex_);
    collector_.on_prompt(output);
  }
  void on_step_end() override {}
  void on_failure(const std::string& sentence) override {
    const std::lock_guard lock(mutex_);
    failure_ = sentence;
    changed_.notify_all();
  }

  void wait_for_tokens(int64_t tokens) {
    wait([&] { return tokens_ >= tokens || open_ == 0; });
  }
  Answers take_all() {
    wait([&] { return open_ == 0; });
    const std::lock_guard lock(mutex_);
    return std::move(collector_.answers);
  }

 private:
  template <typename Until>
  void wait(Until until) {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, kLongest, [&] { return until() || !failure_.empty(); });
    if (!failure_.empty()) fail("the engine's process: {}", failure_);
    if (!there)
      fail("the engine's process: expected answers within {} s, found {} open", kLongest.count(),
           open_);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Collector collector_;
  size_t open_;
  int64_t tokens_ = 0;
  std::string failure_;
};

// `invar serve` as the engine's process of a server.
std::vector<std::string> command_of(const Schedule& schedule) {
  const SchedulerOptions& s = schedule.engine.scheduler;
  std::vector<std::string> command = {"/proc/self/exe", "serve"};
  std::ranges::move(arguments_of(schedule.model), std::back_inserter(command));
  for (const auto& [name, value] : {std::pair{"--max-model-len", s.max_model_len},
                                    {"--max-num-seqs", s.max_num_seqs},
                                    {"--max-num-batched-tokens", s.max_num_batched_tokens}}) {
    command.emplace_back(name);
    command.push_back(fmt::to_string(value));
  }
  command.emplace_back("--engine-files");
  return command;
}

}  // namespace

Answers run_in_process(const Schedule& schedule, std::vector<Request> requests,
                       const Tokenizer& tokenizer) {
  Waiting sink(requests.size());
  server::EngineProcess process(command_of(schedule), tokenizer);
  process.start(sink);
  const bool is_killed = schedule.place == Schedule::Place::killed;
  const auto submit = [&](std::span<Request> some) {
    for (Request& request : some) {
      request.constraint = nullptr;  // compiled there
      process.submit(std::move(request));
    }
  };
  const std::span<Request> all(requests);
  const size_t first = is_killed ? std::max<size_t>(1, all.size() / 2) : all.size();
  submit(all.first(first));
  if (is_killed) {
    // The other half comes to a process that stands still, so that it never dies with all answered.
    sink.wait_for_tokens(static_cast<int64_t>(first));
    const pid_t engine = process.process();
    kill(engine, SIGSTOP);
    submit(all.subspan(first));
    kill(engine, SIGKILL);
  }
  Answers answers = sink.take_all();
  const int64_t expected = is_killed ? 1 : 0;
  if (process.restarts() != expected)
    fail("the engine's process: expected {} restarts, found {}", expected, process.restarts());
  process.stop();
  return answers;
}

}  // namespace invar::cli
