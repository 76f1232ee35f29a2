#include "inproc_backend.h"

#include "base/check.h"
#include "base/error.h"

namespace invar::server {

InprocBackend::InprocBackend(Engine& engine, const Tokenizer& tokenizer, BackendFacts facts)
    : engine_(engine), facts_(std::move(facts)), constraints_(tokenizer) {
  facts_.max_model_len = engine.max_model_len();
  stats_.pages = stats_.free_pages = engine.num_pages();
}

InprocBackend::~InprocBackend() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  woken_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void InprocBackend::start(BackendSink& sink) {
  CHECK(!sink_, "a backend starts once");
  sink_ = &sink;
  thread_ = std::thread([this] { run(); });
}

BackendStats InprocBackend::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void InprocBackend::submit(Job job) {
  Request request{.id = job.id,
                  .prompt = std::move(job.prompt),
                  .params = std::move(job.params),
                  .choice = job.choice,
                  .cache_salt = std::move(job.cache_salt),
                  .hash_logits = job.hash_logits};
  if (!job.form.empty()) {
    const std::lock_guard lock(compiling_);
    request.constraint = constraints_.compile(json::parse(job.form, "the form of the answer"));
  }
  {
    const std::lock_guard lock(mutex_);
    added_.push_back(std::move(request));
  }
  woken_.notify_one();
}

void InprocBackend::cancel(int64_t id) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
  }
  woken_.notify_one();
}

// Steps while there is work; orders are taken between steps.
void InprocBackend::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [&] {
        return stopping_ || engine_.has_work() || !added_.empty() || !cancelled_.empty();
      });
      if (stopping_) return;
    }
    take_orders();
    count(engine_.step(*sink_));
    sink_->on_step_end();
  }
}

void InprocBackend::take_orders() {
  std::vector<Request> added;
  std::vector<int64_t> cancelled;
  {
    const std::lock_guard lock(mutex_);
    added.swap(added_);
    cancelled.swap(cancelled_);
  }
  for (Request& request : added) {
    const int64_t id = request.id;
    try {
      engine_.add(std::move(request));
    } catch (const Error&) {  // the front checks what it submits
      sink_->on_token({.request = id,
                       .finish = FinishReason::failed,
                       .error = "the engine refused the request"});
    }
  }
  for (const int64_t id : cancelled) engine_.abort(id);
}

void InprocBackend::count(bool stepped) {
  const StepStats& step = engine_.last_step();
  const std::lock_guard lock(mutex_);
  stats_.running = engine_.num_running();
  stats_.waiting = engine_.num_waiting();
  stats_.free_pages = engine_.free_pages();
  if (!stepped) return;
  stats_.steps += 1;
  stats_.rows += step.rows;
  stats_.draws += step.draws;
  stats_.preemptions += step.preempted;
  stats_.prompt_tokens += step.begun;
  stats_.cached_tokens += step.cached;
}

}  // namespace invar::server
