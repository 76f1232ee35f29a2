#include "engine/executor.h"

#include "engine/model_runner.h"
#include "engine/rank_processes.h"

namespace invar {

namespace {

// Rank 0 of several processes.
class ProcessExecutor final : public Executor {
 public:
  ProcessExecutor(Model& model, const RunnerLimits& limits)
      : processes_(*model.processes()), threads_(model.threads_of_rank()) {
    processes_.begin_runner(limits);
    own_ = std::make_unique<ModelRunner>(model, limits, threads_, processes_.group());
  }
  ~ProcessExecutor() override { processes_.end_runner(); }

  void run(const Batch& batch, ForwardIo& io) override {
    processes_.run(batch);
    own_->run(batch, io);
  }
  const Placement& placement() const override { return own_->placement(); }
  void copy_slots(const std::vector<SlotCopy>& copies) override {
    processes_.copy_slots(copies);
    own_->copy_slots(copies);
  }
  std::vector<KvStorage*> storages() override { return {}; }
  const Decoder& decoder() const override { return own_->decoder(); }
  int64_t workspace_bytes() const override { return own_->workspace_bytes(); }

 private:
  RankProcesses& processes_;
  ThreadPool threads_;
  std::unique_ptr<ModelRunner> own_;
};

}  // namespace

std::unique_ptr<Executor> make_executor(Model& model, const RunnerLimits& limits,
                                        ThreadPool* threads) {
  if (model.processes()) return std::make_unique<ProcessExecutor>(model, limits);
  return std::make_unique<ModelRunner>(model, limits, threads);
}

}  // namespace invar
