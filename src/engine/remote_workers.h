// Workers of which all but home are elsewhere and hear messages: what launches of processes share.
#pragma once

#include <optional>
#include <vector>

#include "engine/devices.h"
#include "engine/message_link.h"
#include "engine/workers.h"

namespace invar {

class RemoteWorkers : public Workers {
 public:
  std::span<Worker* const> here() const override { return here_; }
  bool are_all_the_callers() const override { return false; }
  bool runs_ahead() const override { return stages_ > 1; }
  int workers_on_device_of_home() const override;

 protected:
  // Their links' senders wait for no reader, up to some 64 KiB. `turn`: home's, where a launcher of
  // processes says it; else it follows from home's place.
  RemoteWorkers(const ModelDescription& model, int threads_of_rank,
                std::optional<DeviceTurn> turn = {});
  // Loads home's share while the others load theirs.
  void load_home(const TensorSource& source, ThreadPool& pool, const LoadProgress& progress);
  Worker& home_worker() { return *home_; }
  int size() const { return ranks_ * stages_; }
  // The first message of worker `number`; what it computes over is the launch's.
  LoadModel load_message(int number) const;
  // Waits for each one's answer: nothing, or a sentence about what is wrong.
  void expect_done();

  void order(const WorkerMessage& message, AsWorker work) override;
  void run(const WorkerMessage& message, AsWorker work) override;
  bool send_ahead(const WorkerMessage& message) override;

  const ModelDescription& model_;
  const int ranks_, stages_, threads_of_rank_;
  std::vector<std::unique_ptr<MessageLink>> links_;  // to all but home, by number

 private:
  // A step's message to all but home.
  void send(std::string bytes);

  const DeviceTurn turn_;  // home's
  ThreadPool threads_;     // home's
  std::unique_ptr<Worker> home_;
  std::vector<Worker*> here_;
};

// The life of a worker that is told by `link` what to do. `connect`: what it computes over, once it
// knows its place, and which cores, where the message leaves that open; what it returns lives as
// long as `link`. Returns when nobody tells it more; throws Error when a message makes no sense or
// a step fails. `turn`: as home's.
using Connect = std::function<WorkerLinks(LoadModel&)>;
void serve_worker(MessageLink& link, const Connect& connect, std::optional<DeviceTurn> turn = {});

}  // namespace invar
