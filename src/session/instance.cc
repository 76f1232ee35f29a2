#include "session/instance.h"

#include "base/error.h"
#include "drafters/make_proposer.h"

namespace invar {

namespace {

// The cores are divided among replicas.
int threads_of_replica(const InstanceOptions& o) {
  if (o.model.threads > 0 || o.replicas == 1) return o.model.threads;
  return std::max(1, static_cast<int>(ThreadPool::usable_cores().size()) / o.replicas);
}

std::unique_ptr<Engine> make_replica(const InstanceOptions& o, const EngineOptions& engine,
                                     Model& model, ThreadPool* threads) {
  const DrafterRoom room{.max_sequences = engine.scheduler.max_num_seqs,
                         .context = engine.scheduler.max_model_len};
  return std::make_unique<Engine>(
      model, engine, threads,
      o.proposer ? o.proposer(model) : make_proposer(o.speculation, model, room, threads));
}

}  // namespace

ModelOptions model_options(const InstanceOptions& options) {
  ModelOptions model = with_drafter(options.model, options.speculation);
  model.threads = threads_of_replica(options);
  return model;
}

std::shared_ptr<Model> open_model(const InstanceOptions& options, const LoadProgress& progress) {
  const ModelOptions model = model_options(options);
  return std::make_shared<Model>(model, progress, launch_of(model));
}

bool is_loaded_for(const Model& model, const InstanceOptions& options) {
  ModelOptions wanted = model_options(options);
  wanted.threads = model.options().threads;
  return model.options() == wanted;
}

Instance::Instance(const InstanceOptions& options, std::shared_ptr<Model> model) {
  if (options.replicas < 1)
    fail_usage("expected 1 replica or more (--data-parallel-size), found {}", options.replicas);
  if (options.replicas > 1 && options.model.device != "cpu")
    fail_usage("engines that share weights are computed on the cpu, found the device {}",
               options.model.device);
  model_ = model ? std::move(model) : open_model(options);
  EngineOptions engine = options.engine;
  engine.engines_sharing = options.replicas;
  const int threads = model_->pool().size();
  for (int i = 0; i < options.replicas; ++i) {
    if (i > 0) pools_.push_back(std::make_unique<ThreadPool>(threads, i * threads));
    engines_.push_back(
        make_replica(options, engine, *model_, i > 0 ? pools_.back().get() : nullptr));
    // All have the first one's context, cache and steps, whatever memory says after it.
    engine.scheduler.max_model_len = engines_.front()->max_model_len();
    engine.kv_bytes = engines_.front()->kv_bytes() + engines_.front()->branch_bytes() +
                      engines_.front()->cell_bytes();
    engine.step_rows = engines_.front()->step_rows();
    engine.fit_context = false;
  }
}

int Instance::threads() const {
  return model_->device().is_host() && model_->ranks() == 1 ? model_->pool().size() : 0;
}

}  // namespace invar
