#include "inproc_backend.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "session/weight_receiver.h"

namespace invar::server {

InprocBackend::InprocBackend(Engine& engine, const Tokenizer& tokenizer, BackendFacts facts,
                             int replica)
    : engine_(engine),
      watch_(engine, replica),
      checkpoint_(facts.weights),
      constraints_(tokenizer),
      facts_(std::move(facts)) {
  facts_.max_model_len = engine.max_model_len();
  stats_.max_running = engine.options().scheduler.max_num_seqs;
  stats_.blocks = stats_.free_blocks = engine.num_blocks();
}

void InprocBackend::start(BackendSink& sink) {
  CHECK(!sink_, "a backend starts once");
  sink_ = &sink;
  thread_ = std::thread([this] { run(); });
}

void InprocBackend::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  woken_.notify_one();
  if (thread_.joinable()) thread_.join();
}

BackendFacts InprocBackend::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

BackendStats InprocBackend::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void InprocBackend::submit(Request request) {
  constraints_.hold(request);
  order([this, request = std::move(request)]() mutable { add(std::move(request)); });
}

void InprocBackend::cancel(int64_t id) {
  try {
    order([this, id] {
      engine_.abort(id);
      watch_.forget(id);
    });
  } catch (const EngineFailed&) {  // it computes nothing any longer
  }
}

// On the engine's thread, before its next step.
void InprocBackend::order(std::function<void()> what) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw EngineFailed(failure_);
    orders_.push_back(std::move(what));
  }
  woken_.notify_one();
}

// Where it fails in the middle, the model takes its checkpoint again.
void InprocBackend::take_weights(const std::string& directory) {
  between_steps([&] {
    engine_.expect_no_work();
    const Digest digest = engine_.model().digest_of(directory);
    try {
      engine_.take_checkpoint(directory);
    } catch (const std::exception& error) {
      const bool had_trained = trained_.any();
      trained_.forget();
      set_weights(checkpoint_);
      if (!had_trained) throw;
      invar::fail("{}; the weights are those of {} again, without what came by NCCL", error.what(),
                  engine_.model().options().model);
    }
    trained_.forget();
    set_weights(checkpoint_ = digest);
  });
}

void InprocBackend::take_received(WeightReceiver& receiver) {
  between_steps([&] {
    try {
      set_weights(trained_.take(engine_, receiver.came()));
    } catch (...) {
      if (!trained_.any()) set_weights(checkpoint_);
      throw;
    }
    receiver.begin();
  });
}

void InprocBackend::set_weights(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  facts_.weights = digest;
}

void InprocBackend::sleep(const Sleep& what) {
  between_steps([&] {
    if (what.weights == Sleep::Weights::lost && trained_.any())
      fail_usage(
          "expected weights that can be read again (level 2), found some that came by NCCL: sleep "
          "at level 1");
    engine_.sleep(what);
  });
}

void InprocBackend::wake(const Wake& what) {
  between_steps([&] { engine_.model().wake(what); });
}

void InprocBackend::forget_blocks() {
  between_steps([&] { engine_.clear_prefix_cache(); });
}

void InprocBackend::expect_rest() {
  between_steps([&] { engine_.expect_no_work(); });
}

void InprocBackend::follow_weights(const Digest& weights) {
  between_steps([&] {
    engine_.clear_prefix_cache();
    set_weights(checkpoint_ = weights);
  });
}

// Waits; throws what the task throws.
void InprocBackend::between_steps(std::function<void()> task) {
  auto asked = std::make_shared<std::packaged_task<void()>>(std::move(task));
  std::future<void> done = asked->get_future();
  order([asked = std::move(asked)] { (*asked)(); });
  done.get();
}

// A device that failed, memory that could not be had: blocks and sequences are in the middle of a
// step, and nothing that is computed with them would be an answer.
void InprocBackend::fail(const std::string& sentence) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = "the engine failed: " + sentence;
    orders_.clear();  // who waits for one hears that it will not come
  }
  sink_->on_failure(failure_);
}

void InprocBackend::run() {
  try {
    work();
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

// Steps while there is work; orders are taken between steps.
void InprocBackend::work() {
  // This thread computes, as rank 0 too.
  if (engine_.model().device().is_host()) engine_.threads().pin_caller();
  while (true) {
    std::vector<std::function<void()>> orders;
    {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [&] { return stopping_ || engine_.has_work() || !orders_.empty(); });
      if (stopping_) return;
      orders.swap(orders_);
    }
    for (const auto& order : orders) order();
    count(watch_.step(*sink_));
    sink_->on_step_end();
  }
}

void InprocBackend::add(Request request) {
  const int64_t id = request.id;
  try {
    engine_.add(std::move(request));
  } catch (const Error&) {  // the front checks what it submits
    sink_->on_token(
        {.request = id, .finish = FinishReason::failed, .error = "the engine refused the request"});
  }
}

void InprocBackend::count(bool stepped) {
  const StepStats& step = engine_.last_step();
  const std::lock_guard lock(mutex_);
  stats_.running = engine_.num_running();
  stats_.waiting = engine_.num_waiting();
  stats_.free_blocks = engine_.free_blocks();
  if (!stepped) return;
  stats_.steps += 1;
  stats_.rows += step.rows;
  stats_.samples += step.samples;
  stats_.preemptions += step.preempted;
  stats_.prompt_tokens += step.begun;
  stats_.cached_tokens += step.cached;
  stats_.drafts += step.drafts;
  stats_.draft_tokens += step.draft_tokens;
  stats_.accepted_tokens += step.accepted_tokens;
  if (stats_.accepted_at.size() < step.accepted_at.size())
    stats_.accepted_at.resize(step.accepted_at.size());
  for (size_t i = 0; i < step.accepted_at.size(); ++i) stats_.accepted_at[i] += step.accepted_at[i];
}

}  // namespace invar::server
