#include "engine_process.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "base/check.h"
#include "base/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace invar::server {

namespace {

// Engines that die in turn without having computed anything new: then their requests are to blame,
// or the machine.
constexpr int kMostDeaths = 12;

uint64_t hash_of(const std::string& bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

EngineProcess::EngineProcess(std::vector<std::string> command, const Tokenizer& tokenizer,
                             std::string context_option)
    : command_(std::move(command)),
      context_option_(std::move(context_option)),
      constraints_(tokenizer),
      pulses_(pulse_bytes(1)) {
  supervisor_ = std::thread([this] { supervise(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ready_once_ || given_up_; });
  if (ready_once_) return;
  lock.unlock();
  supervisor_.join();
  fail("the engine's process ended before it was ready; what it said stands above");
}

void EngineProcess::start(BackendSink& sink) {
  const std::lock_guard lock(mutex_);
  CHECK(!sink_, "a backend starts once");
  sink_ = &sink;
}

void EngineProcess::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (process_ > 0) ::kill(process_, SIGKILL);
    changed_.notify_all();
  }
  if (supervisor_.joinable()) supervisor_.join();
}

BackendFacts EngineProcess::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

BackendStats EngineProcess::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

int64_t EngineProcess::restarts() const {
  const std::lock_guard lock(mutex_);
  return restarts_;
}

pid_t EngineProcess::process() const {
  const std::lock_guard lock(mutex_);
  return process_;
}

void EngineProcess::submit(Request request) {
  constraints_.hold(request);
  const std::string bytes = to_bytes(request);
  const std::lock_guard lock(mutex_);
  const int64_t id = request.id;
  live_.emplace(id, Live{.request = std::move(request)});
  send(Message::submit, bytes);
}

void EngineProcess::cancel(int64_t id) {
  const std::lock_guard lock(mutex_);
  if (live_.erase(id)) send(Message::cancel, cancel_bytes(id));
}

// With the mutex held.
void EngineProcess::send(Message kind, const std::string& bytes) {
  if (sender_) sender_->post(static_cast<uint8_t>(kind), bytes);
}

Taken EngineProcess::order(Message kind, const std::string& bytes) {
  std::future<Taken> answer;
  {
    const std::lock_guard lock(mutex_);
    if (!sender_) fail("the engine's process is being started again; ask once more");
    CHECK(!taking_, "orders are given one after the other");
    answer = taking_.emplace().get_future();
    send(kind, bytes);
  }
  Taken taken = answer.get();
  if (!taken.error.empty()) throw Error(taken.error);
  return taken;
}

void EngineProcess::take_weights(const std::string& directory) {
  const Taken taken = order(Message::take, directory);
  const std::lock_guard lock(mutex_);
  weights_before_ = std::exchange(facts_.weights, taken.weights);
  checkpoint_before_ = std::exchange(checkpoint_, directory);
}

void EngineProcess::take_back() {
  const std::lock_guard lock(mutex_);
  facts_.weights = weights_before_;
  checkpoint_ = checkpoint_before_;
  if (process_ > 0) ::kill(process_, SIGKILL);
}

// Life of one engine after the other.
void EngineProcess::supervise() {
  while (true) {
    spawn();
    if (take_hello()) {
      resubmit();
      take_frames();
    }
    reap();
    std::unique_lock lock(mutex_);
    if (!ready_once_) given_up_ = true;
    changed_.notify_all();
    if (stopping_ || given_up_) return;
    ++restarts_;
    const int deaths = ++deaths_without_progress_;
    if (deaths >= kMostDeaths) {
      lock.unlock();
      fail_all(fmt::format("the engine's process ended {} times without a new token", deaths));
      lock.lock();
    }
    if (deaths > 1)
      changed_.wait_for(lock, std::chrono::milliseconds(10 << std::min(deaths, 4)),
                        [&] { return stopping_; });
    if (stopping_) return;
  }
}

void EngineProcess::spawn() {
  std::vector<std::string> command = command_;
  {
    const std::lock_guard lock(mutex_);
    if (ready_once_ && !context_option_.empty())
      command.insert(command.end() - 1, {context_option_, std::to_string(facts_.max_model_len)});
  }
  watch_.emplace(pulses_, std::vector<std::string>{"the engine's process"});
  const SpawnedEngine engine = spawn_engine(command, pulses_, [this] { return watch_->trouble(); });
  receiving_ = engine.socket;
  const std::lock_guard lock(mutex_);
  process_ = engine.process;
  if (stopping_ && process_ > 0) ::kill(process_, SIGKILL);
}

bool EngineProcess::take_hello() {
  if (!receiving_) return false;
  Hello hello;
  try {
    const std::optional<Frame> frame = receiving_->receive();
    if (!frame || frame->kind != static_cast<uint8_t>(Message::hello)) return false;
    hello = hello_from(frame->bytes);
    if (!take_weights_again(hello.facts)) return false;
  } catch (const Error& error) {
    fmt::print(stderr, "invar: {}\n", error.what());
    return false;
  }
  std::unique_lock lock(mutex_);
  const BackendFacts before = facts_;
  facts_ = hello.facts;
  stats_ = hello.stats;
  add_counters(stats_, stats_before_);
  const bool same = before.identity == facts_.identity &&
                    before.specification == facts_.specification &&
                    before.weights == facts_.weights;
  if (!std::exchange(ready_once_, true) || same) {
    changed_.notify_all();
    return true;
  }
  lock.unlock();
  const BackendFacts& now = hello.facts;
  fail_all(fmt::format(
      "the answer was begun with {}, the specification {} and the weights {}, but the engine came "
      "back with {}, {} and {}: it would be another answer",
      before.identity, to_hex(before.specification), to_hex(before.weights), now.identity,
      to_hex(now.specification), to_hex(now.weights)));
  return true;
}

// False when that engine has died of it. One that cannot take them has other weights than before.
bool EngineProcess::take_weights_again(BackendFacts& facts) {
  std::string checkpoint;
  {
    const std::lock_guard lock(mutex_);
    checkpoint = checkpoint_;
  }
  if (checkpoint.empty()) return true;
  receiving_->send(static_cast<uint8_t>(Message::take), checkpoint);
  const std::optional<Frame> frame = receiving_->receive();
  if (!frame || frame->kind != static_cast<uint8_t>(Message::taken)) return false;
  const Taken taken = taken_from(frame->bytes);
  if (taken.error.empty())
    facts.weights = taken.weights;
  else
    fmt::print(stderr, "invar: the engine's process came back without the weights of {}: {}\n",
               checkpoint, taken.error);
  return true;
}

void EngineProcess::resubmit() {
  const std::lock_guard lock(mutex_);
  sender_.emplace(receiving_);
  for (auto& [id, live] : live_) {
    live.tokens_seen = live.prompts_seen = 0;
    send(Message::submit, to_bytes(live.request));
  }
}

void EngineProcess::take_frames() {
  try {
    while (const std::optional<Frame> frame = receiving_->receive()) take_frame(*frame);
  } catch (const Error& error) {  // one that says what cannot be, or nothing, is as good as dead
    fmt::print(stderr, "invar: {}\n", error.what());
  }
}

void EngineProcess::take_frame(const Frame& frame) {
  if (frame.kind == static_cast<uint8_t>(Message::outputs))
    return take_outputs(outputs_from(frame.bytes));
  if (frame.kind != static_cast<uint8_t>(Message::taken))
    fail("the engine's process: expected outputs, found a message of kind {}", frame.kind);
  const Taken taken = taken_from(frame.bytes);
  const std::lock_guard lock(mutex_);
  if (!taking_) fail("the engine's process: it took weights that nobody gave it");
  taking_->set_value(taken);
  taking_.reset();
}

void EngineProcess::take_outputs(const StepOutputs& step) {
  std::vector<const RequestOutput*> shown;
  std::vector<int64_t> different;
  {
    const std::lock_guard lock(mutex_);
    stats_ = step.stats;
    add_counters(stats_, stats_before_);
    for (const RequestOutput& output : step.outputs) {
      const auto found = live_.find(output.request());
      if (found == live_.end()) continue;  // cancelled
      Live& live = found->second;
      const bool token = output.kind == RequestOutput::Kind::token;
      auto& had = token ? live.tokens : live.prompts;
      size_t& seen = token ? live.tokens_seen : live.prompts_seen;
      const uint64_t hash = hash_of(output.bytes);
      if (seen == had.size()) {
        had.push_back(hash);
        shown.push_back(&output);
        deaths_without_progress_ = 0;
        if (output.is_last())
          live_.erase(found);
        else
          ++seen;
      } else if (had[seen++] != hash) {
        different.push_back(output.request());
        live_.erase(found);
      }
    }
  }
  for (const RequestBegun& begun : step.begun) sink_->on_begun(begun);
  for (const RequestOutput* output : shown) {
    if (output->kind == RequestOutput::Kind::prompt) {
      sink_->on_prompt(output->prompt);
      continue;
    }
    if (output->kind == RequestOutput::Kind::pooled) {
      sink_->on_pooled(output->pooled);
      continue;
    }
    TokenOutput token = output->token;
    if (!output->error.empty()) token.error = interned(output->error);
    sink_->on_token(token);
  }
  for (const int64_t id : different)
    fail_job(id, "the engine came back and computed another answer than before");
  for (const StepRecord& one : step.steps) sink_->on_step(one);
  sink_->on_step_end();
}

void EngineProcess::reap() {
  const std::lock_guard lock(mutex_);
  sender_.reset();
  receiving_.reset();
  if (taking_)
    taking_->set_value({.error = "the engine's process ended while it took the weights"});
  taking_.reset();
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  process_ = 0;
  stats_.running = 0;
  stats_.waiting = static_cast<int32_t>(live_.size());
  stats_before_ = stats_;
}

// Tells the sink; the engine is told where it still has the request.
void EngineProcess::fail_job(int64_t id, const std::string& sentence) {
  {
    const std::lock_guard lock(mutex_);
    send(Message::cancel, cancel_bytes(id));
  }
  sink_->on_token({.request = id, .finish = FinishReason::failed, .error = interned(sentence)});
}

void EngineProcess::fail_all(const std::string& sentence) {
  std::vector<int64_t> ids;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, live] : live_) ids.push_back(id);
    live_.clear();
    deaths_without_progress_ = 0;
  }
  for (const int64_t id : ids) fail_job(id, sentence);
  if (!ids.empty()) sink_->on_step_end();
}

const char* EngineProcess::interned(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  return sentences_.insert(sentence).first->c_str();
}

}  // namespace invar::server
