// Several backends of one model behind one: each request is one backend's. Which one does not
// matter to its bits.
#pragma once

#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine_process.h"
#include "inproc_backend.h"
#include "prefix_router.h"
#include "session/instance.h"

namespace invar::server {

class Replicas : public Backend {
 public:
  ~Replicas() override { stop(); }

  void start(BackendSink& sink) override;
  void stop() override;
  BackendFacts facts() const override { return replicas_.front()->facts(); }
  BackendStats stats() const override;    // of all
  void submit(Request request) override;  // to the one that PrefixRouter chooses
  void cancel(int64_t id) override;

 protected:
  // All have the same facts.
  explicit Replicas(std::vector<std::unique_ptr<Backend>> replicas);

  const std::vector<std::unique_ptr<Backend>>& replicas() const { return replicas_; }

 private:
  // The sink of one replica: notices which requests are over and hands everything on.
  struct ForwardingSink final : BackendSink {
    ForwardingSink(Replicas& owner, BackendSink& sink, int32_t number)
        : owner(owner), sink(sink), number(number) {}
    void on_token(const TokenOutput& output) override;
    void on_prompt(const PromptOutput& output) override { sink.on_prompt(output); }
    void on_pooled(const PooledOutput& output) override;
    void on_begun(const RequestBegun& begun) override { sink.on_begun(begun); }
    void on_step(const StepRecord& step) override;
    void on_step_end() override { sink.on_step_end(); }
    void on_failure(const std::string& sentence) override { sink.on_failure(sentence); }

    Replicas& owner;
    BackendSink& sink;
    const int32_t number;
  };
  // The replica of a request that is over from now on, or nothing.
  Backend* forget(int64_t id);

  const std::vector<std::unique_ptr<Backend>> replicas_;
  std::deque<ForwardingSink> sinks_;

  std::mutex mutex_;  // guards what follows
  PrefixRouter router_;
  std::unordered_map<int64_t, size_t> places_;
  std::vector<size_t> live_;  // requests of each replica
};

// The engines of an instance, which share the weights.
class InprocReplicas final : public Replicas {
 public:
  // Both outlive it.
  InprocReplicas(Instance& instance, const Tokenizer& tokenizer);
  void take_weights(const std::string& directory) override;
  // Throws UsageError where there are several.
  void take_received(WeightReceiver& receiver) override;
  void sleep(const Sleep& what) override;
  void wake(const Wake& what) override { replica(0).wake(what); }

 private:
  InprocBackend& replica(size_t i) const { return static_cast<InprocBackend&>(*replicas()[i]); }
};

// Engines in processes of their own, each with its own weights. One that dies is started again and
// computes its requests once more, while the others go on.
class ReplicaProcesses final : public Replicas {
 public:
  // One for each command (EngineProcess), all of which begin at the same time.
  ReplicaProcesses(const std::vector<std::vector<std::string>>& commands,
                   const Tokenizer& tokenizer, const std::string& context_option);
  // All of them, or those that did take the old ones again.
  void take_weights(const std::string& directory) override;
  void sleep(const Sleep& what) override;
  void wake(const Wake& what) override;

  int64_t restarts() const;              // of all
  pid_t process(size_t replica) const {  // 0 while there is none
    return this->replica(replica).process();
  }

 private:
  EngineProcess& replica(size_t i) const { return static_cast<EngineProcess&>(*replicas()[i]); }
};

}  // namespace invar::server
