// Workers have failed in a step: keys and values are lost, tokens are not. Other workers compute
// every live request again, whose answers go on behind what the sink was told.
#include "engine/engine.h"

namespace invar {

void Engine::recover(OutputSink& sink) {
  wait_for_device();
  executor_->recover();
  adapters_.forget_loaded();
  if (proposer_) proposer_->recover();
  if (committed_ < begun_) stats_ = {};
  for (; committed_ < begun_; ++committed_) discard(nth(committed_));
  std::vector<int64_t> preempted;
  scheduler_->preempt_all(preempted);
  late_.clear();  // they are sampled again
  clear_prefix_cache();
  chunk_copies_.clear();
  state_copies_.clear();
  stats_.preempted = static_cast<int>(preempted.size());
  for (const int64_t id : preempted) sink.on_preempt(id);
  if (clock_) clock_.emplace(executor_->decoder().execution);
  emit(sink);
}

// Work that was given to it reads and writes memory that is used again.
void Engine::wait_for_device() {
  try {
    executor_->decoder().execution.stream->wait();
  } catch (const Error&) {  // of a failed device, which whoever steps hears of
  }
}

// Tokens that were sampled before the step failed stand: their logits were there as a whole.
void Engine::discard(StepInFlight& step) {
  results_.assign(step.plan.entries.size(), StepResult{});
  for (SamplingStage::Walk& walk : step.sampling->walks())
    if (!walk.state->is_over && !walk.outputs.empty()) take_walk(step, walk);
  scheduler_->discard(step.plan, results_);
  for (size_t i = 0; i < results_.size(); ++i)
    if (results_[i].finished) forget(step.plan.entries[i].id);
  step.states.clear();
}

}  // namespace invar
