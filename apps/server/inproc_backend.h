// The engine on a thread of this process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "backend.h"
#include "engine/engine.h"
#include "frontend/constraint_compiler.h"

namespace invar::server {

class InprocBackend final : public Backend {
 public:
  // All outlive it. `facts` of the engine's model; max_model_len is taken from the engine.
  InprocBackend(Engine& engine, const Tokenizer& tokenizer, BackendFacts facts);
  ~InprocBackend() override;

  void start(BackendSink& sink) override;
  BackendFacts facts() const override { return facts_; }
  BackendStats stats() const override;
  void submit(Job job) override;
  void cancel(int64_t id) override;

 private:
  void run();
  void take_orders();
  void count(bool stepped);

  Engine& engine_;
  BackendFacts facts_;
  BackendSink* sink_ = nullptr;

  std::mutex compiling_;  // guards constraints_
  ConstraintCompiler constraints_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable woken_;
  std::vector<Request> added_;
  std::vector<int64_t> cancelled_;
  BackendStats stats_;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace invar::server
