// Tokens that come later than the step that sampled them: its constraints had done all of their
// work. Which tokens are late depends on counted work, and no token on whether it is late.
#include <utility>

#include "engine/engine.h"

namespace invar {

int64_t Engine::settle_late() {
  int64_t work = options_.form_work;
  while (!late_.empty() && work > 0) {
    LateToken oldest = std::move(late_.front());
    late_.pop_front();
    settle(std::move(oldest), work);
  }
  return work;
}

void Engine::settle(LateToken late, int64_t& work) {
  RequestState& state = *late.state;
  const int64_t id = state.request.id;
  TokenOutput output = SamplingStage::settle(state, std::move(late.drawn), work);
  const bool is_over = output.finish != FinishReason::none;
  if (is_over && state.request.routed_experts) output.routed_experts = std::move(state.routed);
  if (output.error) {
    scheduler_->remove(id);
  } else {
    scheduler_->settle(id, is_over);
    ++late_samples_;
  }
  outbox_.tokens.push_back(std::move(output));
  if (is_over) forget(id);
}

// Tells what became known where no step could be planned.
void Engine::emit_late(OutputSink& sink) {
  stats_ = {.samples = std::exchange(late_samples_, 0),
            .running = scheduler_->num_running(),
            .waiting = scheduler_->num_waiting(),
            .free_blocks = pool_->free_blocks()};
  emit(sink);
}

void Engine::forget_late(int64_t id) {
  std::erase_if(late_, [&](const LateToken& late) { return late.state->request.id == id; });
}

}  // namespace invar
