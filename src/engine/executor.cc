#include "engine/executor.h"

namespace invar {

Executor::Executor(Model& model, const RunnerLimits& limits, ThreadPool* threads,
                   const Executor* keys_of)
    : model_(model),
      workers_(model.workers()),
      limits_(limits),
      number_(workers_.make_runner(limits, keys_of ? keys_of->number_ : -1, threads)),
      generation_(workers_.generation()) {}

Executor::~Executor() {
  workers_.end_runner(number_);
}

void Executor::run(const Batch& batch, ForwardIo& io) {
  if (!workers_.are_all_the_callers()) {
    auto& message = std::get<RunBatch>(run_);
    message.runner = number_;
    message.batch = batch;
  }
  step(
      run_,
      [&](Worker& worker) {
        if (worker.place().is_home()) return worker.run(number_, batch, io);
        ForwardIo of_stage{.trace = io.trace, .times = io.times};
        worker.run(number_, batch, of_stage);
      },
      io.sampled);
}

void Executor::copy_slots(const std::vector<SlotCopy>& copies) {
  auto& message = std::get<CopySlots>(copy_);
  message.runner = number_;
  message.copies = copies;
  step(copy_, [&](Worker& worker) { worker.copy_slots(message); });
}

bool Executor::tell(const Batch& batch) {
  expect_generation();
  auto& message = std::get<RunBatch>(run_);
  message.runner = number_;
  message.batch = batch;
  return workers_.tell(run_);
}

void Executor::expect_whole() {
  expect_generation();
  workers_.expect_whole();
}

void Executor::expect_generation() const {
  if (generation_ != workers_.generation())
    throw WorkerFailed(std::make_exception_ptr(Error("a worker failed under another engine")));
}

void Executor::step(const WorkerMessage& message, Workers::AsWorker work, const int32_t* sampled) {
  expect_generation();
  workers_.step(message, work, sampled);
}

void Executor::recover() {
  workers_.recover(generation_);
  generation_ = workers_.generation();
}

int64_t Executor::workspace_bytes() const {
  int64_t total = 0;
  for (Worker* worker : workers_.here()) total += worker->runner(number_).workspace_bytes();
  return total;
}

}  // namespace invar
