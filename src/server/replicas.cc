#include "replicas.h"

#include <algorithm>
#include <future>

#include "base/error.h"
#include "engine/specification.h"
#include "session/open.h"

namespace invar::server {

namespace {

BackendFacts facts_of(Instance& instance, const Tokenizer& tokenizer) {
  Model& model = instance.model();
  const EngineOptions& engine = instance.engine().options();
  return {.identity = model.identity(),
          .specification = specification_digest(model.config()),
          .weights = weights_digest(model.options(), model.pool()),
          .instruction_set = model.instruction_set(),
          .vocab = static_cast<int32_t>(model.spec().vocab),
          .end_tokens = end_tokens(model, tokenizer),
          .prompt_logprobs = engine.prompt_logprobs,
          .block_size = engine.block_size,
          .prefix_caching = engine.prefix_caching,
          .routed_columns = routed_columns(model.spec()),
          .vector_size = static_cast<int32_t>(model.config().pooling.outputs(model.spec().hidden)),
          .routed_layers = static_cast<int32_t>(std::ranges::count_if(
              model.spec().layer_specs,
              [](const LayerSpec& layer) { return layer.chosen_experts() > 0; }))};
}

std::vector<std::unique_ptr<Backend>> engines_of(Instance& instance, const Tokenizer& tokenizer) {
  const BackendFacts facts = facts_of(instance, tokenizer);
  std::vector<std::unique_ptr<Backend>> engines;
  for (size_t i = 0; i < instance.replicas(); ++i)
    engines.push_back(
        std::make_unique<InprocBackend>(instance.engine(i), tokenizer, facts, static_cast<int>(i)));
  return engines;
}

// work(i) for every i below `count` at the same time; all have ended.
template <typename Work>
auto in_parallel(size_t count, Work work) {
  std::vector<std::future<decltype(work(size_t{0}))>> doing;
  for (size_t i = 0; i < count; ++i)
    doing.push_back(std::async(std::launch::async, [&work, i] { return work(i); }));
  for (auto& one : doing) one.wait();
  return doing;
}

}  // namespace

Replicas::Replicas(std::vector<std::unique_ptr<Backend>> replicas)
    : replicas_(std::move(replicas)),
      router_(replicas_.size(), replicas_.front()->facts().block_size),
      live_(replicas_.size()) {}

void Replicas::start(BackendSink& sink) {
  for (const auto& replica : replicas_)
    replica->start(sinks_.emplace_back(*this, sink, static_cast<int32_t>(sinks_.size())));
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

Backend* Replicas::forget(int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(id);
  if (found == places_.end()) return nullptr;
  const size_t place = found->second;
  places_.erase(found);
  --live_[place];
  return replicas_[place].get();
}

void Replicas::cancel(int64_t id) {
  if (Backend* replica = forget(id)) replica->cancel(id);
}

void Replicas::ForwardingSink::on_token(const TokenOutput& output) {
  if (output.finish != FinishReason::none) owner.forget(output.request);
  sink.on_token(output);
}

void Replicas::ForwardingSink::on_pooled(const PooledOutput& output) {
  owner.forget(output.request);
  sink.on_pooled(output);
}

void Replicas::ForwardingSink::on_step(const StepRecord& step) {
  StepRecord numbered = step;
  numbered.engine = number;
  sink.on_step(numbered);
}

InprocReplicas::InprocReplicas(Instance& instance, const Tokenizer& tokenizer)
    : Replicas(engines_of(instance, tokenizer)) {}

// They share the weights: all must rest before one takes others.
void InprocReplicas::take_weights(const std::string& directory) {
  for (size_t i = 0; i < replicas().size(); ++i) replica(i).expect_rest();
  replica(0).take_weights(directory);
  const Digest weights = facts().weights;
  for (size_t i = 1; i < replicas().size(); ++i) replica(i).follow_weights(weights);
}

void InprocReplicas::take_received(WeightReceiver& receiver) {
  if (replicas().size() > 1) return Replicas::take_received(receiver);
  replica(0).take_received(receiver);
}

// Keys and values are each one's own, and go with the weights.
void InprocReplicas::sleep(const Sleep& what) {
  for (size_t i = 0; i < replicas().size(); ++i) replica(i).expect_rest();
  for (size_t i = 0; i < replicas().size(); ++i) replica(i).forget_blocks();
  replica(0).sleep(what);
}

namespace {

// Engines that are ready. All have the least context of one of them, whatever memory said.
std::vector<std::unique_ptr<Backend>> processes_of(
    const std::vector<std::vector<std::string>>& commands, const Tokenizer& tokenizer,
    const std::string& context_option) {
  std::vector<std::unique_ptr<Backend>> engines;
  for (auto& started : in_parallel(commands.size(), [&](size_t i) {
         return std::make_unique<EngineProcess>(commands[i], tokenizer, context_option);
       }))
    engines.push_back(started.get());
  int32_t context = engines.front()->facts().max_model_len;
  for (const auto& engine : engines) {
    const BackendFacts facts = engine->facts(), first = engines.front()->facts();
    context = std::min(context, facts.max_model_len);
    if (facts.identity != first.identity || facts.specification != first.specification ||
        facts.weights != first.weights)
      fail(
          "expected replicas that compute the same, found {} with the weights {} and {} with the "
          "weights {}",
          first.identity, to_hex(first.weights), facts.identity, to_hex(facts.weights));
  }
  for (size_t i = 0; i < engines.size(); ++i) {
    if (engines[i]->facts().max_model_len == context) continue;
    std::vector<std::string> command = commands[i];
    command.insert(command.end() - 1, {context_option, std::to_string(context)});
    engines[i] = nullptr;  // its memory is needed
    engines[i] = std::make_unique<EngineProcess>(std::move(command), tokenizer, context_option);
  }
  return engines;
}

}  // namespace

ReplicaProcesses::ReplicaProcesses(const std::vector<std::vector<std::string>>& commands,
                                   const Tokenizer& tokenizer, const std::string& context_option)
    : Replicas(processes_of(commands, tokenizer, context_option)) {}

int64_t ReplicaProcesses::restarts() const {
  int64_t all = 0;
  for (size_t i = 0; i < replicas().size(); ++i) all += replica(i).restarts();
  return all;
}

void ReplicaProcesses::take_weights(const std::string& directory) {
  auto taking =
      in_parallel(replicas().size(), [&](size_t i) { replica(i).take_weights(directory); });
  std::vector<size_t> have_taken;
  std::exception_ptr wrong;
  for (size_t i = 0; i < taking.size(); ++i) {
    try {
      taking[i].get();
      have_taken.push_back(i);
    } catch (...) {
      if (!wrong) wrong = std::current_exception();
    }
  }
  if (!wrong) return;
  for (const size_t i : have_taken) replica(i).take_back();
  std::rethrow_exception(wrong);
}

// When one fails, the others sleep nevertheless; all are told to wake up.
void ReplicaProcesses::sleep(const Sleep& what) {
  for (auto& one : in_parallel(replicas().size(), [&](size_t i) { replica(i).sleep(what); }))
    one.get();
}

void ReplicaProcesses::wake(const Wake& what) {
  for (auto& one : in_parallel(replicas().size(), [&](size_t i) { replica(i).wake(what); }))
    one.get();
}

}  // namespace invar::server
