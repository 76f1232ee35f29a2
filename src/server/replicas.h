// The engines of an instance behind one backend: each request is one engine's. Which one does not
// matter to its bits.
#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "inproc_backend.h"
#include "prefix_router.h"
#include "session/instance.h"

namespace invar::server {

class Replicas final : public Backend {
 public:
  // Both outlive it.
  Replicas(Instance& instance, const Tokenizer& tokenizer);
  ~Replicas() override { stop(); }

  void start(BackendSink& sink) override;
  void stop() override;
  BackendFacts facts() const override { return replicas_.front()->facts(); }
  BackendStats stats() const override;    // of all
  void submit(Request request) override;  // to the one that PrefixRouter chooses
  void cancel(int64_t id) override;
  void take_weights(const std::string& directory) override;

 private:
  // Notices which requests are over and hands everything on.
  struct ForwardingSink final : BackendSink {
    explicit ForwardingSink(Replicas& owner) : owner(owner) {}
    void on_token(const TokenOutput& output) override;
    void on_prompt(const PromptOutput& output) override { sink->on_prompt(output); }
    void on_pooled(const PooledOutput& output) override;
    void on_begun(const RequestBegun& begun) override { sink->on_begun(begun); }
    void on_step(const StepRecord& step) override { sink->on_step(step); }
    void on_step_end() override { sink->on_step_end(); }
    void on_failure(const std::string& sentence) override { sink->on_failure(sentence); }

    Replicas& owner;
    BackendSink* sink = nullptr;
  };
  // The replica of a request that is over from now on, or nothing.
  InprocBackend* forget(int64_t id);

  std::vector<std::unique_ptr<InprocBackend>> replicas_;
  ForwardingSink sink_{*this};

  std::mutex mutex_;  // guards what follows
  PrefixRouter router_;
  std::unordered_map<int64_t, size_t> places_;
  std::vector<size_t> live_;  // requests of each replica
};

}  // namespace invar::server
