// A worker is one rank of one pipeline stage: its device, its share of the weights of the stage's
// layers, and runners, each with keys and values. The same class whether it lives on a thread of
// the engine's process or in a process of its own; engine/workers.h has all those of a model.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "engine/model_description.h"
#include "engine/runner.h"
#include "engine/worker_messages.h"

namespace invar {

class Worker {
 public:
  // Loads its weights from `source` with the threads of `loaders`; computes on `threads`.
  Worker(const ModelDescription& model, const WorkerPlace& place, std::shared_ptr<Device> device,
         ThreadPool& loaders, ThreadPool& threads, const TensorSource& source,
         const LoadProgress& progress = {});

  // With whom it computes from now on: at first, and after a failure.
  void join(const WorkerLinks& links);
  const WorkerLinks& links() const { return links_; }
  // It has failed in a step: nobody waits for it any longer.
  void leave();

  // Makes the runner that the message describes, known by its number from then on. `threads` null:
  // its own.
  void make_runner(const MakeRunner& message, ThreadPool* threads = nullptr);
  void end_runner(int32_t number);
  void run(int32_t runner, const Batch& batch, ForwardIo& io);
  void copy_slots(const CopySlots& message);
  // Weights of the same model: panels are written in place. Nobody may compute meanwhile. Throws
  // Error when a tensor is missing, has another shape or is not finite.
  void take_weights(const TensorSource& source);
  // DecoderWeights::read_back.
  void read_back(const TensorSource& source, const std::string& tensor, std::byte* out);
  // Memory that is not needed for a while. Nobody may compute before all is back.
  void give_memory(const GiveMemory& message);
  void take_memory(const TakeMemory& message);
  // Any of these as a message, where nobody reads what a batch leaves.
  void handle(const WorkerMessage& message);

  const WorkerPlace& place() const { return place_; }
  Device& device() const { return *device_; }
  const DecoderWeights& weights() const { return weights_; }
  const Kernels& kernels() const { return kernels_; }
  Runner& runner(int32_t number);

 private:
  Decoder make_decoder(const RunnerLimits& limits, ThreadPool& threads) const;

  const ModelDescription& model_;
  const WorkerPlace place_;
  const std::shared_ptr<Device> device_;
  ThreadPool &loaders_, &threads_;
  const Kernels kernels_;
  DecoderWeights weights_;
  WorkerLinks links_;
  std::unique_ptr<Group> chain_;  // around the links' group, where the arithmetic wants one
  std::mutex mutex_;              // engines on threads of their own make and end runners
  std::map<int32_t, std::unique_ptr<Runner>> runners_;
  std::vector<std::vector<std::byte>> kept_;  // arrays of weights whose memory is given back
};

// The layers of a stage.
LayerRange layers_of_stage(const ModelDescription& model, int stage);

}  // namespace invar
