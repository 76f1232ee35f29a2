// Workers in processes of this machine. The engine's process is home; it starts the others, each of
// which loads its share of the model, and sends them every message as bytes. Groups and stages
// exchange over sockets (collectives/). Slow and correct: operands go through the kernel.
#include "engine/process_workers.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/fields.h"
#include "base/signals.h"
#include "engine/workers.h"

namespace invar {

namespace {

// A message is its size in 8 bytes, then itself.
void send_message(int socket, std::string_view message) {
  const uint64_t size = message.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += message;
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::send(socket, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("a worker's process takes no more messages: {}", std::strerror(errno));
    at += static_cast<size_t>(n);
  }
}

// False when the other side has ended.
bool receive_bytes(int socket, char* to, size_t size) {
  while (size > 0) {
    const ssize_t n = ::recv(socket, to, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool receive_message(int socket, std::string& message) {
  constexpr uint64_t kMost = uint64_t{1} << 32;
  uint64_t size = 0;
  if (!receive_bytes(socket, reinterpret_cast<char*>(&size), sizeof size)) return false;
  if (size > kMost) fail("expected a message of at most {} bytes, found {}", kMost, size);
  message.resize(size);
  return receive_bytes(socket, message.data(), size);
}

// Whether a worker says how it went; what goes wrong in a step its neighbours find.
bool is_answered(const WorkerMessage& message) {
  return !std::holds_alternative<RunBatch>(message) && !std::holds_alternative<CopySlots>(message);
}

// A socket that is closed with its owner.
class Socket {
 public:
  explicit Socket(int number = -1) : number_(number) {}
  Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Socket() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

// A connected pair that a started program does not inherit.
std::pair<Socket, Socket> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail("the system gives no socket for a worker: {}", std::strerror(errno));
  return {Socket(ends[0]), Socket(ends[1])};
}

// Between fork and exec: only what a signal handler may call.
[[noreturn]] void become_worker(char* const* arguments, std::span<const int> sockets,
                                const cpu_set_t& cores, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it ended before the line above
  ::signal(SIGINT, SIG_IGN);              // the parent decides when to end
  ::signal(SIGTERM, SIG_IGN);
  ignore_signals_of_others();
  ::sched_setaffinity(0, sizeof cores, &cores);
  for (const int socket : sockets) ::fcntl(socket, F_SETFD, 0);
  ::execv(arguments[0], arguments);
  ::_exit(127);
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
    Socket socket;  // for messages
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
      attempt([&] { send_message(process.socket.number(), bytes); });
    attempt([&] { work(*home_); });
    attempt([&] { expect_done(); });
    if (wrong) std::rethrow_exception(wrong);
  }

  void run(const WorkerMessage& message, AsWorker work) override {
    try {
      const std::string bytes = to_bytes(message);
      for (const Process& process : processes_) send_message(process.socket.number(), bytes);
      work(*home_);
    } catch (...) {
      home_->leave();
      throw;
    }
  }

  // What each answers: nothing, or a sentence about what is wrong.
  void expect_done() {
    std::string wrong, answer;
    for (int i = 0; i < std::ssize(processes_); ++i) {
      const WorkerPlace place = place_of(i);
      if (!receive_message(processes_[i].socket.number(), answer)) answer = "it has ended";
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
    std::string words[] = {model_.options.worker, "worker", std::to_string(its.number())};
    char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
    const pid_t self = ::getpid(), process = ::fork();
    if (process == 0) become_worker(arguments, inherited, cores_, self);
    if (process < 0)
      fail("the process of rank {} cannot be started: {}", place.rank, std::strerror(errno));
    processes_.push_back({std::move(mine), process});
    send_message(processes_.back().socket.number(), to_bytes(WorkerMessage(std::move(message))));
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
  explicit WorkerServer(int socket) : socket_(socket) {}

  void serve() {
    std::string bytes;
    while (receive_message(socket_, bytes)) {
      const auto message = from_bytes<WorkerMessage>(bytes, "a worker's message");
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

  const int socket_;
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
