#include "replicas.h"

#include "base/check.h"
#include "engine/specification.h"

namespace invar::server {

namespace {

BackendFacts facts_of(Instance& instance) {
  Model& model = instance.model();
  const EngineOptions& engine = instance.engine().options();
  return {.identity = model.identity(),
          .specification = specification_digest(model.config()),
          .weights = weights_digest(model.options(), model.pool()),
          .instruction_set = model.instruction_set(),
          .vocab = static_cast<int32_t>(model.spec().vocab),
          .end_tokens = model.config().eos_ids,
          .prompt_logprobs = engine.prompt_logprobs,
          .block_size = engine.block_size,
          .prefix_caching = engine.prefix_caching,
          .routed_columns = routed_columns(model.spec())};
}

}  // namespace

Replicas::Replicas(Instance& instance, const Tokenizer& tokenizer)
    : router_(instance.replicas(), instance.engine().options().block_size),
      live_(instance.replicas()) {
  const BackendFacts facts = facts_of(instance);
  for (size_t i = 0; i < instance.replicas(); ++i)
    replicas_.push_back(
        std::make_unique<InprocBackend>(instance.engine(i), tokenizer, facts, static_cast<int>(i)));
}

void Replicas::start(BackendSink& sink) {
  sink_.sink = &sink;
  for (const auto& replica : replicas_) replica->start(sink_);
}

void Replicas::stop() {
  for (const auto& replica : replicas_) replica->stop();
}

BackendStats Replicas::stats() const {
  BackendStats all;
  for (const auto& replica : replicas_) add_to(all, replica->stats());
  return all;
}

void Replicas::submit(Request request) {
  size_t place = 0;
  {
    const std::lock_guard lock(mutex_);
    place = router_.choose(request.prompt.get(), request.cache_salt.get(), live_);
    places_.emplace(request.id, place);
    ++live_[place];
  }
  const int64_t id = request.id;
  try {
    replicas_[place]->submit(std::move(request));
  } catch (...) {
    forget(id);
    throw;
  }
}

InprocBackend* Replicas::forget(int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  if (found == places_.end()) return nullptr;
  const size_t place = found->second;
  places_.erase(found);
  --live_[place];
  return replicas_[place].get();
}

void Replicas::cancel(int64_t id) {
  if (InprocBackend* replica = forget(id)) replica->cancel(id);
}

void Replicas::ForwardingSink::on_token(const TokenOutput& output) {
  if (output.finish != FinishReason::none) owner.forget(output.request);
  sink->on_token(output);
}

void Replicas::ForwardingSink::on_pooled(const PooledOutput& output) {
  owner.forget(output.request);
  sink->on_pooled(output);
}

// They share the weights: all must rest before one takes others.
void Replicas::take_weights(const std::string& directory) {
  for (const auto& replica : replicas_) replica->expect_rest();
  replicas_.front()->take_weights(directory);
  const Digest weights = facts().weights;
  for (const auto& replica : replicas_)
    if (replica != replicas_.front()) replica->follow_weights(weights);
}

}  // namespace invar::server
