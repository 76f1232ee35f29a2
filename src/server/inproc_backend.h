// The engine on a thread of this process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "backend.h"
#include "engine/engine.h"
#include "frontend/constraint_compiler.h"
#include "session/trained_weights.h"
#include "step_watch.h"

namespace invar::server {

class InprocBackend final : public Backend {
 public:
  // All outlive it. `facts` of the engine's model; max_model_len is taken from the engine.
  // `replica`: its number among those that share a model.
  InprocBackend(Engine& engine, const Tokenizer& tokenizer, BackendFacts facts, int replica = 0);
  ~InprocBackend() override { stop(); }

  void start(BackendSink& sink) override;
  void stop() override;  // after the step that is being computed
  BackendFacts facts() const override;
  BackendStats stats() const override;
  void submit(Request request) override;
  void cancel(int64_t id) override;
  void take_weights(const std::string& directory) override;
  void take_received(WeightReceiver& receiver) override;
  void sleep(const Sleep& what) override;
  void wake(const Wake& what) override;

  // For engines that share a model: waits until this one rests, and tells it of weights that
  // another one took.
  void expect_rest();
  void forget_blocks();
  void follow_weights(const Digest& weights);

 private:
  void run();
  void work();
  void fail(const std::string& sentence);
  void add(Request request);
  void order(std::function<void()> what);
  void between_steps(std::function<void()> task);
  void count(bool stepped);
  void set_weights(const Digest& digest);

  Engine& engine_;
  BackendSink* sink_ = nullptr;
  StepWatch watch_;

  // The engine's thread alone sees these: weights that came since the checkpoint, and its digest.
  TrainedWeights trained_;
  Digest checkpoint_;

  ConstraintCompiler constraints_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable woken_;
  std::vector<std::function<void()>> orders_;  // in the order in which they were given
  BackendFacts facts_;
  BackendStats stats_;
  bool stopping_ = false;
  std::string failure_;  // empty: it works

  std::thread thread_;
};

}  // namespace invar::server
