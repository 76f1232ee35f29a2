// The engine in a process of its own, supervised: when that process dies, or gives no sign of life
// for ten seconds, it is started again and computes every unfinished request once more. Tokens that
// were computed before have to come again bit by bit; they are compared and not shown twice.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backend.h"
#include "base/frame_sender.h"
#include "engine_messages.h"
#include "frontend/constraint_compiler.h"
#include "spawn_engine.h"

namespace invar::server {

class EngineProcess final : public Backend {
 public:
  // Runs `command` with two more arguments (spawn_engine); that process shows a SignOfLife and
  // calls serve_engine with its socket. Waits until it is ready; throws Error when it never is.
  // `tokenizer` outlives this: forms of answers are checked here, before the engine sees them.
  // `context_option`, where there is one, tells an engine that is started again the context that
  // the first one had, so that what memory there is then changes nothing.
  EngineProcess(std::vector<std::string> command, const Tokenizer& tokenizer,
                std::string context_option = {});
  ~EngineProcess() override { stop(); }

  void start(BackendSink& sink) override;
  void stop() override;  // ends the process
  BackendFacts facts() const override;
  BackendStats stats() const override;
  void submit(Request request) override;
  void cancel(int64_t id) override;
  // An engine that is started again takes them once more. It has all of its memory.
  void take_weights(const std::string& directory) override;
  // Goes on with the weights of before the last take_weights: the engine is started again. Only
  // while no request is live.
  void take_back();
  void sleep(const Sleep& what) override { order(Message::sleep, to_bytes(what)); }
  void wake(const Wake& what) override { order(Message::wake, to_bytes(what)); }

  int64_t restarts() const;
  pid_t process() const;  // 0 while there is none

 private:
  // A request that is not finished, and hashes of what the sink has of it.
  struct Live {
    Request request;
    std::vector<uint64_t> tokens, prompts;
    size_t tokens_seen = 0, prompts_seen = 0;  // of the engine that runs now
  };

  void send(Message kind, const std::string& bytes);
  // Gives an order that is answered with Taken. Throws Error with what it says.
  Taken order(Message kind, const std::string& bytes);
  void supervise();
  void spawn();
  bool take_hello();
  bool take_weights_again(BackendFacts& facts);
  void take_frame(const Frame& frame);
  void resubmit();
  void take_frames();
  void take_outputs(const StepOutputs& step);
  bool is_new(Live& live, const RequestOutput& output);
  void reap();
  void fail_job(int64_t id, const std::string& sentence);
  void fail_all(const std::string& sentence);
  const char* interned(const std::string& sentence);

  const std::vector<std::string> command_;
  const std::string context_option_;
  ConstraintCompiler constraints_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  BackendSink* sink_ = nullptr;
  std::optional<FrameSender> sender_;  // none while no engine is ready
  pid_t process_ = 0;
  bool ready_once_ = false, stopping_ = false, given_up_ = false;
  BackendFacts facts_;
  BackendStats stats_, stats_before_;  // before: of engines that have died
  std::map<int64_t, Live> live_;       // in the order of submission
  std::string checkpoint_;             // that was taken last; empty: the one that the command names
  std::string checkpoint_before_;      // it
  Digest weights_before_{};
  std::optional<std::promise<Taken>> taking_;
  std::set<std::string> sentences_;  // TokenOutput::error points into it
  int64_t restarts_ = 0;
  int deaths_without_progress_ = 0;

  // Used by the supervisor's thread alone.
  SharedMemory pulses_;
  std::optional<PulseWatch> watch_;
  std::shared_ptr<FrameSocket> receiving_;
  std::thread supervisor_;
};

// The other side: answers over the socket `file` until the server is gone.
[[noreturn]] void serve_engine(int file, Backend& backend);

}  // namespace invar::server
