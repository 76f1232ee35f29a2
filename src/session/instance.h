// The one factory: a model that is loaded, with its ranks, its proposer and its engines, from one
// struct of options. The command line, the server and its lab, loads, and the library compute by
// it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "speculative/config.h"

namespace invar {

struct InstanceOptions {
  ModelOptions model;
  EngineOptions engine;  // of every replica
  SpeculativeConfig speculation;
  // Engines that share the weights; each has threads, blocks and a queue of its own. On the cpu; on
  // GPUs they are processes (src/server/replicas.h).
  int replicas = 1;
  // Makes each engine's proposer in place of the one that `speculation` names, to measure or to
  // check.
  std::function<std::unique_ptr<Proposer>(Model&)> proposer = {};
};

// How the model is loaded for the options: with what drafts by it, and with the threads of one
// replica.
ModelOptions model_options(const InstanceOptions& options);
std::shared_ptr<Model> open_model(const InstanceOptions& options,
                                  const LoadProgress& progress = {});
// Whether an instance of the options can have this model. Threads may differ.
bool is_loaded_for(const Model& model, const InstanceOptions& options);

class Instance {
 public:
  // Loads the model, or takes one that was loaded for the options. Throws Error and UsageError as
  // Model, make_proposer and Engine do.
  explicit Instance(const InstanceOptions& options, std::shared_ptr<Model> model = nullptr);

  Model& model() { return *model_; }
  const std::shared_ptr<Model>& shared_model() const { return model_; }
  Engine& engine(size_t replica = 0) { return *engines_[replica]; }
  size_t replicas() const { return engines_.size(); }
  // Threads of each engine; 0: its steps are computed by ranks or on a GPU.
  int threads() const;

 private:
  std::shared_ptr<Model> model_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;  // of all engines but the first
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace invar
