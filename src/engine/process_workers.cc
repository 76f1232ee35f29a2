// Workers in processes of this machine. The engine's process is home; it starts the others, each of
// which loads its share of the model, and sends them every message as bytes. Groups and stages
// exchange over sockets (collectives/). Slow and correct: operands go through the kernel.
#include "engine/process_workers.h"

#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/child_process.h"
#include "base/fields.h"
#include "base/frames.h"
#include "engine/workers.h"

namespace invar {

namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 32;  // of a message

void send_message(FrameSocket& socket, std::string_view message) {
  if (!socket.send(0, message))
    fail("a worker's process takes no more messages: {}", std::strerror(errno));
}

// Whether a worker says how it went; what goes wrong in a step its neighbours find.
bool is_answered(const WorkerMessage& message) {
  return !std::holds_alternative<RunBatch>(message) && !std::holds_alternative<CopySlots>(message);
}

// The sockets of one worker: what it computes over.
struct Sockets {
  std::vector<Socket> peers;  // by rank of its group
  Socket before, after;       // stages
};

class ProcessWorkers final : public Workers {
 public:
  ProcessWorkers(const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
                 const LoadProgress& progress)
      : model_(model),
        ranks_(model.options.ranks),
        stages_(model.stages()),
        threads_of_rank_(model.threads_of_rank(pool.size())),
        threads_(threads_of_rank_) {
    ::sched_getaffinity(0, sizeof cores_, &cores_);
    start();  // they load while this process does
    home_ = std::make_unique<Worker>(model, place_of(size() - 1), make_host_device(), pool,
                                     threads_, source, progress);
    here_ = {home_.get()};
    join_home();
    expect_done();
  }
  ~ProcessWorkers() override { end(); }

  std::span<Worker* const> here() const override { return here_; }
  bool are_all_the_callers() const override { return false; }

 private:
  struct Process {
    std::unique_ptr<FrameSocket> socket;  // for messages
    pid_t id = -1;
  };

  int size() const { return ranks_ * stages_; }
  // Home is the last of them.
  WorkerPlace place_of(int number) const {
    return {ranks_ - 1 - number % ranks_, ranks_, number / ranks_, stages_};
  }
  int number_of(int stage, int rank) const { return stage * ranks_ + ranks_ - 1 - rank; }

  // Every answer is read, whatever goes wrong.
  void order(const WorkerMessage& message, AsWorker work) override {
    std::exception_ptr wrong;
    const auto attempt = [&](auto part) {
      try {
        part();
      } catch (...) {
        if (!wrong) wrong = std::current_exception();
      }
    };
    const std::string bytes = to_bytes(message);
    for (const Process& process : processes_)
      attempt([&] { send_message(*process.socket, bytes); });
    attempt([&] { work(*home_); });
    attempt([&] { expect_done(); });
    if (wrong) std::rethrow_exception(wrong);
  }

  void run(const WorkerMessage& message, AsWorker work) override {
    try {
      const std::string bytes = to_bytes(message);
      for (const Process& process : processes_) send_message(*process.socket, bytes);
      work(*home_);
    } catch (...) {
      home_->leave();
      throw;
    }
  }

  // What each answers: nothing, or a sentence about what is wrong.
  void expect_done() {
    std::string wrong;
    for (int i = 0; i < std::ssize(processes_); ++i) {
      const WorkerPlace place = place_of(i);
      const std::optional<Frame> frame = processes_[i].socket->receive();
      const std::string answer = frame ? frame->bytes : "it has ended";
      if (!answer.empty() && wrong.empty())
        wrong = fmt::format("rank {} of stage {}: {}", place.rank, place.stage, answer);
    }
    if (!wrong.empty()) fail("{}", wrong);
  }

  void restart() override {
    end();
    start();
    join_home();
    expect_done();
  }

  // Ends the processes that are left. They hold nothing that is worth a word.
  void end() {
    for (const Process& process : processes_) ::kill(process.id, SIGKILL);
    for (const Process& process : processes_) ::waitpid(process.id, nullptr, 0);
    processes_.clear();
  }

  // All processes but home, each of which begins to load.
  void start() {
    std::vector<Sockets> sockets = connect();
    for (int number = 0; number < size() - 1; ++number) start(number, sockets[number]);
    own_ = std::move(sockets.back());
  }

  std::vector<Sockets> connect() const {
    std::vector<Sockets> all(size());
    for (int stage = 0; stage < stages_; ++stage)
      for (int rank = 0; rank < ranks_; ++rank) {
        Sockets& one = all[number_of(stage, rank)];
        one.peers.resize(ranks_);
        if (stage > 0) std::tie(all[number_of(stage - 1, rank)].after, one.before) = socket_pair();
      }
    for (int stage = 0; stage < stages_; ++stage)
      for (int a = 0; a < ranks_; ++a)
        for (const int b : socket_peers(a, ranks_))
          if (a < b)
            std::tie(all[number_of(stage, a)].peers[b], all[number_of(stage, b)].peers[a]) =
                socket_pair();
    return all;
  }

  void start(int number, const Sockets& sockets) {
    auto [mine, its] = socket_pair();
    const WorkerPlace place = place_of(number);
    LoadModel message{.options = model_.options,
                      .place = place,
                      .threads = threads_of_rank_,
                      .before = sockets.before.number(),
                      .after = sockets.after.number()};
    std::vector<int> inherited = {its.number(), message.before, message.after};
    for (const Socket& peer : sockets.peers) message.peers.push_back(peer.number());
    inherited.insert(inherited.end(), message.peers.begin(), message.peers.end());
    std::erase(inherited, -1);
    const std::string command[] = {model_.options.worker, "worker", std::to_string(its.number())};
    const pid_t process = invar::start({command, inherited, &cores_});
    processes_.push_back({std::make_unique<FrameSocket>(std::move(mine), kMostBytes), process});
    send_message(*processes_.back().socket, to_bytes(WorkerMessage(std::move(message))));
  }

  void join_home() {
    group_ = nullptr;
    if (ranks_ > 1) {
      std::vector<int> peers;
      for (const Socket& peer : own_.peers) peers.push_back(peer.number());
      group_ = make_socket_group(0, std::move(peers));
    }
    before_ = stages_ > 1 ? make_socket_channel(own_.before.number()) : nullptr;
    home_->join({.group = group_ ? group_.get() : &solo_group(), .before = before_.get()});
  }

  const ModelDescription& model_;
  const int ranks_, stages_, threads_of_rank_;
  ThreadPool threads_;  // home's
  cpu_set_t cores_{};   // of this process, whatever its threads are pinned to
  std::vector<Process> processes_;
  Sockets own_;
  std::unique_ptr<Group> group_;
  std::unique_ptr<Channel> before_;
  std::unique_ptr<Worker> home_;
  std::vector<Worker*> here_;
};

// ---- The other side ----

class WorkerServer {
 public:
  explicit WorkerServer(int socket) : socket_(Socket(socket), kMostBytes) {}

  void serve() {
    while (const std::optional<Frame> frame = socket_.receive()) {
      const auto message = from_bytes<WorkerMessage>(frame->bytes, "a worker's message");
      if (is_answered(message))
        answer(message);
      else
        step(message);
    }
  }

 private:
  // Nobody waits for an answer: the others find that this worker has left.
  void step(const WorkerMessage& message) {
    if (!worker_) fail("expected a worker's model before its first step");
    try {
      worker_->handle(message);
    } catch (...) {
      worker_->leave();
      throw;
    }
  }

  void answer(const WorkerMessage& message) {
    std::string wrong;
    try {
      if (const auto* load = std::get_if<LoadModel>(&message); load && !worker_)
        open(*load);
      else if (worker_)
        worker_->handle(message);
      else
        fail("expected a worker's model first");
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    send_message(socket_, wrong);
  }

  void open(const LoadModel& message) {
    std::unique_ptr<TensorSource> source;
    const WorkerPlace& place = message.place;
    model_ = std::make_unique<ModelDescription>(message.options, source);
    threads_ = std::make_unique<ThreadPool>(message.threads, place.rank * message.threads);
    worker_ =
        std::make_unique<Worker>(*model_, place, make_host_device(), *threads_, *threads_, *source);
    threads_->pin_caller();
    if (place.ranks > 1)
      group_ = make_socket_group(place.rank, {message.peers.begin(), message.peers.end()});
    if (message.before >= 0) before_ = make_socket_channel(message.before);
    if (message.after >= 0) after_ = make_socket_channel(message.after);
    worker_->join({.group = group_ ? group_.get() : &solo_group(),
                   .before = before_.get(),
                   .after = after_.get()});
  }

  FrameSocket socket_;
  std::unique_ptr<ModelDescription> model_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Group> group_;
  std::unique_ptr<Channel> before_, after_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace

Launch launch_processes() {
  return [](const ModelDescription& model, const TensorSource& source, ThreadPool& pool,
            const LoadProgress& progress) -> std::unique_ptr<Workers> {
    if (model.options.ranks * model.stages() == 1)
      return launch_threads()(model, source, pool, progress);
    if (model.options.device != "cpu")
      fail_usage("workers are processes only on the CPU so far, and the device is {}",
                 model.options.device);
    return std::make_unique<ProcessWorkers>(model, source, pool, progress);
  };
}

void serve_worker(int socket) {
  WorkerServer(socket).serve();
}

}  // namespace invar
