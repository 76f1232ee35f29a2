// All workers of a model: one for each rank of each stage. Some live in this process, home among
// them (WorkerPlace::is_home); the others get messages. Implementations differ in how those start,
// live and get their messages: thread_workers.cc, process_workers.cc.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "base/function_ref.h"
#include "collectives/peer_group.h"
#include "engine/worker.h"

namespace invar {

// A worker has failed in a step or is gone. Keys and values are lost, and with them the sequences'
// computed rows; Workers::recover gives other workers, which compute them again.
class WorkerFailed : public Error {
 public:
  // `why`: what the worker threw.
  explicit WorkerFailed(std::exception_ptr why);
  // Throws the worker's exception.
  [[noreturn]] void rethrow() const { std::rethrow_exception(why_); }

 private:
  std::exception_ptr why_;
};

class Workers {
 public:
  // Runs on the calling thread as one worker.
  using AsWorker = FunctionRef<void(Worker&)>;

  virtual ~Workers() = default;

  // How many workers of this host have home's device, if those of other processes do, too; 1: home
  // alone, or those of here() do.
  virtual int workers_on_device_of_home() const { return 1; }
  // Those of this process, home last.
  virtual std::span<Worker* const> here() const = 0;
  Worker& home() const { return *here().back(); }
  // Whether one thread, the caller's, plays all of them. Messages are not needed then, and as long
  // as it is one worker, several threads may call at once, each with runners of its own.
  virtual bool are_all_the_callers() const = 0;

  // A runner on every worker; its number. `threads`: on which it computes where one thread plays
  // all workers; null: the model's.
  int32_t make_runner(const RunnerLimits& limits, int32_t keys_of, ThreadPool* threads);
  void end_runner(int32_t number);
  // Other weights, which the workers of this process read from `source`.
  void take_weights(const TakeWeights& message, const TensorSource& source);
  void give_memory(const GiveMemory& message);
  void take_memory(const TakeMemory& message);
  // A step: RunBatch or CopySlots. The calling thread calls `work` for each worker that it plays,
  // in the order of the stages. Throws WorkerFailed when one fails; from then on always, until they
  // recover. `sampled`: where home's device has the tokens of the step before, which a batch may
  // want; only where they are shared.
  void step(const WorkerMessage& message, AsWorker work, const int32_t* sampled = nullptr);
  // Whether ranks beside home read the tokens that its device has sampled, so that a step can be
  // begun before the host knows them.
  virtual bool shares_tokens() const { return false; }
  // Whether stages before home compute on their own, so that they can be a step ahead of it.
  virtual bool runs_ahead() const { return false; }
  // They begin with a step, for which step() is called later, in the order of these calls. False
  // when they hear of it only then, since there is no room for more that they have not read, or
  // runners of others: before that, no further one is told. Throws WorkerFailed.
  bool tell(const WorkerMessage& message);

  // Asked once the device was waited for: throws WorkerFailed when a rank did not come to a step.
  void expect_whole();

  // How often they recovered: keys and values of before are lost.
  int64_t generation() const { return generation_; }
  // Makes up for workers that failed in this generation, unless somebody has: others in their
  // place, with the same weights and runners.
  void recover(int64_t generation);

 protected:
  // Every worker does what the message says, those of this process by `work`; returns when all have
  // done it. Throws Error with what one of them said.
  virtual void order(const WorkerMessage& message, AsWorker work) = 0;
  // The same of a step. Throws what a worker of this process threw.
  virtual void run(const WorkerMessage& message, AsWorker work) = 0;
  // Sends a step to those of other processes, if they have room. Where they run ahead.
  virtual bool send_ahead(const WorkerMessage&) { return false; }
  // The bytes of steps that they have been told and home has not run.
  std::deque<std::string> told_;
  // A step has failed behind the back of the workers of this process.
  virtual void give_up(const std::exception_ptr&) { home().leave(); }
  // In the step that is run: where home's device has the tokens of the one before, or null.
  const int32_t* sampled_ = nullptr;
  // Workers that can go on: those of this process as they are, others without a runner yet.
  virtual void restart() = 0;

 private:
  void order_end(int32_t number);
  // Waits until home has run what others were told; an order is given under this lock.
  std::unique_lock<std::mutex> lock_when_all_ran();

  std::mutex mutex_;  // one order or step at a time, unless it is one worker
  std::condition_variable all_ran_;
  std::map<int32_t, MakeRunner> runners_;
  int32_t last_runner_ = 0;
  std::atomic<int64_t> generation_ = 0;
};

// Loads the weights of a model into workers, those of this process with `pool`.
using Launch = std::function<std::unique_ptr<Workers>(const ModelDescription&, const TensorSource&,
                                                      ThreadPool& pool, const LoadProgress&)>;

// Makes the tensor group of one stage.
using MakeGroups = std::function<std::vector<std::unique_ptr<Group>>(int ranks)>;

// Every worker on a thread of this process, the caller's for home. `make_groups`: other than those
// of collectives/group.h, for tests. `peers`: how ranks on GPUs meet, for whoever measures that.
Launch launch_threads(MakeGroups make_groups = make_inproc_groups, const PeerOptions& peers = {});
// Every worker but home in a process of this machine, which this one starts.
Launch launch_processes();
// Every worker in a process of its own, on any hosts, all of which a launcher of MPI has started.
Launch launch_mpi();
// The same over sockets between processes that know a secret (host_workers.h).
Launch launch_hosts();
// The launcher that the options name.
Launch launch_of(const ModelOptions& options);

}  // namespace invar
