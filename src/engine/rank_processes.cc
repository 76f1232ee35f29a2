#include "engine/rank_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/error.h"
#include "base/signals.h"
#include "engine/model_runner.h"

namespace invar {

namespace {

enum class Message : uint8_t { model, runner, end_runner, run, copy, take };

std::string message_of(Message kind, std::string_view body = {}) {
  std::string message(1, static_cast<char>(kind));
  return message.append(body);
}

// A message is its size in 8 bytes, then itself.
void send_message(int socket, std::string_view message) {
  const uint64_t size = message.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  bytes += message;
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::send(socket, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("a rank's process takes no more messages: {}", std::strerror(errno));
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
  if (size == 0 || size > kMost)
    fail("expected a message of 1 to {} bytes for a rank, found {}", kMost, size);
  message.resize(size);
  return receive_bytes(socket, message.data(), size);
}

std::string to_bytes(const ModelOptions& o, int rank, int threads) {
  ByteWriter out;
  for (const std::string& text :
       {o.model, o.load_format, o.arithmetic, o.weights, o.device, o.instruction_set, o.executor})
    out.put_text(text);
  out.put(int32_t{o.ranks});
  out.put(int32_t{rank});
  out.put(int32_t{threads});
  out.put_vector(o.layer_cuts);
  return out.take();
}

ModelOptions model_options_from(std::string_view bytes) {
  ByteReader in(bytes, "a rank's model options");
  ModelOptions o;
  for (std::string* text : {&o.model, &o.load_format, &o.arithmetic, &o.weights, &o.device,
                            &o.instruction_set, &o.executor})
    *text = in.get_text();
  o.ranks = in.get<int32_t>();
  o.rank = in.get<int32_t>();
  o.threads = in.get<int32_t>();
  o.layer_cuts = in.get_vector<int>();
  in.expect_end();
  return o;
}

// What a rank answers when it was asked for something: empty, or a sentence about what is wrong.
void expect_done(int socket, int rank) {
  std::string answer;
  if (!receive_message(socket, answer)) fail("rank {} has ended", rank);
  if (answer.size() > 1) fail("rank {}: {}", rank, std::string_view(answer).substr(1));
}

// A connected pair that a started program does not inherit.
std::pair<int, int> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail("the system gives no socket for a rank: {}", std::strerror(errno));
  return {ends[0], ends[1]};
}

// Between fork and exec: only what a signal handler may call.
[[noreturn]] void become_rank(char* const* arguments, const std::vector<int>& sockets,
                              pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it ended before the line above
  ::signal(SIGINT, SIG_IGN);              // the parent decides when to end
  ::signal(SIGTERM, SIG_IGN);
  ignore_signals_of_others();
  for (const int socket : sockets)
    if (socket >= 0) ::fcntl(socket, F_SETFD, 0);
  ::execv(arguments[0], arguments);
  ::_exit(127);
}

}  // namespace

RankProcesses::RankProcesses(const ModelOptions& options, int threads_of_rank) {
  const int ranks = options.ranks;
  std::vector<std::vector<int>> peers(ranks, std::vector<int>(ranks, -1));
  for (int a = 0; a < ranks; ++a)
    for (const int b : socket_peers(a, ranks))
      if (a < b) std::tie(peers[a][b], peers[b][a]) = socket_pair();
  for (int rank = 1; rank < ranks; ++rank) {
    start(rank, options, threads_of_rank, peers[rank]);
    for (const int socket : peers[rank])
      if (socket >= 0) ::close(socket);
  }
  peers_ = peers[0];
  group_ = make_socket_group(0, peers_);
}

void RankProcesses::start(int rank, const ModelOptions& options, int threads_of_rank,
                          const std::vector<int>& peers) {
  const auto [mine, its] = socket_pair();
  std::vector<int> sockets = {its};
  sockets.insert(sockets.end(), peers.begin(), peers.end());
  std::vector<std::string> arguments = {options.worker, "rank-worker", std::to_string(rank)};
  for (const int socket : sockets) arguments.push_back(std::to_string(std::max(0, socket)));
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t self = ::getpid();
  const pid_t process = ::fork();
  if (process == 0) become_rank(pointers.data(), sockets, self);
  ::close(its);
  sockets_.push_back(mine);
  if (process < 0) fail("the process of rank {} cannot be started: {}", rank, std::strerror(errno));
  processes_.push_back(process);
  send_message(mine, message_of(Message::model, to_bytes(options, rank, threads_of_rank)));
}

RankProcesses::~RankProcesses() {
  for (const int socket : sockets_) ::close(socket);
  for (const int socket : peers_)
    if (socket >= 0) ::close(socket);
  for (const pid_t process : processes_) ::waitpid(process, nullptr, 0);
}

void RankProcesses::send_to_all(std::string_view message) {
  for (const int socket : sockets_) send_message(socket, message);
}

void RankProcesses::expect_ready() {
  for (size_t i = 0; i < sockets_.size(); ++i) expect_done(sockets_[i], static_cast<int>(i) + 1);
}

void RankProcesses::take(const std::string& directory) {
  send_to_all(message_of(Message::take, directory));
  expect_ready();
}

void RankProcesses::begin_runner(const RunnerLimits& limits) {
  if (has_runner_) fail_usage("ranks that are processes serve one engine at a time");
  ByteWriter out;
  for (const int32_t limit : {limits.blocks, limits.block_size, limits.max_rows,
                              limits.max_logit_rows, limits.max_aux_layers})
    out.put(limit);
  send_to_all(message_of(Message::runner, out.take()));
  expect_ready();
  has_runner_ = true;
}

void RankProcesses::end_runner() {
  has_runner_ = false;
  try {
    send_to_all(message_of(Message::end_runner));
  } catch (const Error&) {  // it has ended: nothing is left to be given back
  }
}

void RankProcesses::run(const Batch& batch) {
  send_to_all(message_of(Message::run, invar::to_bytes(batch)));
}

void RankProcesses::copy_slots(const std::vector<SlotCopy>& copies) {
  ByteWriter out;
  out.put_vector(copies);
  send_to_all(message_of(Message::copy, out.take()));
}

// ---- The other side ----

namespace {

class RankServer {
 public:
  RankServer(int socket, int rank, std::vector<int> peers)
      : socket_(socket), group_(make_socket_group(rank, std::move(peers))) {}

  void serve() {
    std::string message;
    while (receive_message(socket_, message)) {
      const Message kind{static_cast<uint8_t>(message[0])};
      const std::string_view body = std::string_view(message).substr(1);
      if (kind == Message::run || kind == Message::copy)
        step(kind, body);
      else if (kind == Message::end_runner)
        runner_.reset();
      else
        answer(kind, body);
    }
  }

 private:
  // Of a step nobody waits for an answer: the others find that this rank has left.
  void step(Message kind, std::string_view body) {
    CHECK(runner_ != nullptr, "a batch before its runner");
    try {
      if (kind == Message::copy) {
        ByteReader in(body, "a rank's copies");
        runner_->copy_slots(in.get_vector<SlotCopy>());
        return;
      }
      ForwardIo io;
      runner_->run(batch_from_bytes(body), io);
    } catch (...) {
      group_->leave();
      throw;
    }
  }

  void answer(Message kind, std::string_view body) {
    std::string said(1, ' ');
    try {
      if (kind == Message::model)
        open(body);
      else if (kind == Message::runner)
        begin_runner(body);
      else if (kind == Message::take)
        model_->take(std::string(body));
      else
        fail("expected a message that a rank knows, found kind {}", static_cast<int>(kind));
    } catch (const std::exception& error) {
      said += error.what();
    }
    send_message(socket_, said);
  }

  void open(std::string_view body) {
    const ModelOptions options = model_options_from(body);
    model_ = std::make_unique<Model>(options);
    threads_ = std::make_unique<ThreadPool>(options.threads, options.rank * options.threads);
    threads_->pin_caller();
  }

  void begin_runner(std::string_view body) {
    ByteReader in(body, "a rank's limits");
    RunnerLimits limits;
    for (int32_t* limit : {&limits.blocks, &limits.block_size, &limits.max_rows,
                           &limits.max_logit_rows, &limits.max_aux_layers})
      *limit = in.get<int32_t>();
    in.expect_end();
    runner_.reset();
    runner_ = std::make_unique<ModelRunner>(*model_, limits, *threads_, *group_);
  }

  const int socket_;
  std::unique_ptr<Group> group_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<ModelRunner> runner_;
};

}  // namespace

void serve_rank(int rank, const std::vector<int>& sockets) {
  if (sockets.size() < 3 || rank < 1 || rank >= std::ssize(sockets) - 1)
    fail_usage("expected a rank and the sockets of its group, found {} of them for rank {}",
               sockets.size(), rank);
  RankServer(sockets[0], rank, {sockets.begin() + 1, sockets.end()}).serve();
}

}  // namespace invar
