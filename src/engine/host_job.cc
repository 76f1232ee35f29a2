#include "engine/host_job.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/fields.h"
#include "base/number_of.h"

namespace invar::hosts {

namespace {

constexpr double kPatience = 600;  // seconds, until all are there
constexpr uint64_t kMostBytes = uint64_t{256} << 20;

std::string said(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

// -1: nothing, or no such number.
int number_in(const char* name) {
  return number_of<int>(said(name)).value_or(-1);
}

Launch read_launch() {
  Launch l{.rank = number_in("RANK"),
           .size = number_in("WORLD_SIZE"),
           .local_rank = std::max(0, number_in("LOCAL_RANK")),
           .local_size = std::max(1, number_in("LOCAL_WORLD_SIZE")),
           .address = said("MASTER_ADDR"),
           .port = number_in("MASTER_PORT")};
  if (l.size < 2 || l.rank < 0 || l.rank >= l.size || l.address.empty() || l.port < 1) return {};
  if (said("INVAR_SECRET").empty()) return {};
  expect_good_secret();
  // torchrun itself listens at its port then.
  if (said("TORCHELASTIC_USE_AGENT_STORE") == "True") ++l.port;
  return l;
}

// port: where the process listens; kIsPulse: of its connection for signs of life.
struct Hello {
  int32_t process = 0, port = 0;
};
constexpr int32_t kIsPulse = 0;

struct Head {
  uint64_t bytes = 0;
  uint64_t kind = 0;
};

bool send_message(SecretSocket& to, Kind kind, std::string_view bytes) {
  const Head head{bytes.size(), static_cast<uint64_t>(kind)};
  return to.send(&head, sizeof head) && to.send(bytes.data(), bytes.size());
}

}  // namespace

void expect_good_secret() {
  constexpr size_t kLeast = 32;  // 128 bits in hexadecimal digits
  if (const size_t found = said("INVAR_SECRET").size(); found < kLeast)
    fail_usage(
        "expected INVAR_SECRET of at least {} bytes, which nobody guesses (openssl rand -hex 32), "
        "found {}",
        kLeast, found);
}

const Launch& launch() {
  static const Launch found = read_launch();
  return found;
}

Job& Job::join() {
  static Job job;
  return job;
}

Job::Job() : secret_(said("INVAR_SECRET")) {
  controls_.resize(static_cast<size_t>(launch().size));
  places_.resize(controls_.size());
  launch().rank == 0 ? gather() : introduce();
}

// The first process: hears where each of the others listens, and tells all of them. Each comes
// twice.
void Job::gather() {
  const Launch& l = launch();
  listener_ = std::make_unique<SecretListener>(l.address, l.port, secret_);
  places_[0] = {l.address, l.port};
  std::vector<std::unique_ptr<SecretSocket>> pulses(controls_.size());
  for (int left = 2 * (l.size - 1); left > 0; --left) {
    auto socket = listener_->accept(kPatience);
    Hello hello;
    if (!socket->receive(&hello, sizeof hello)) fail("another rank's process has ended");
    const bool is_pulse = hello.port == kIsPulse;
    auto& mine = is_pulse ? pulses : controls_;
    if (hello.process < 1 || hello.process >= l.size || mine[hello.process])
      fail("expected each of {} processes once, found number {} again or beyond them", l.size,
           hello.process);
    if (!is_pulse) places_[hello.process] = {socket->peer_address(), hello.port};
    mine[hello.process] = std::move(socket);
  }
  watch_.emplace(std::move(pulses), [this](int process) { give_up(process); });
  std::string all;
  for (const Place& place : places_) all += fmt::format("{} {}\n", place.address, place.port);
  for (int process = 1; process < l.size; ++process)
    if (!send_message(*controls_[process], Kind::order, all))
      fail("process {} of {} has ended", process, l.size);
}

// A connection says whose it is before the next one is made: the first process reads a hello before
// it takes another connection.
void Job::introduce() {
  const Launch& l = launch();
  const auto introduce = [&l](SecretSocket& socket, int32_t port) {
    const Hello hello{l.rank, port};
    socket.send(&hello, sizeof hello);
  };
  controls_[0] = connect_to(l.address, l.port, secret_, kPatience);
  listener_ = std::make_unique<SecretListener>(controls_[0]->own_address(), 0, secret_);
  introduce(*controls_[0], listener_->port());
  auto pulse = connect_to(l.address, l.port, secret_, kPatience);
  introduce(*pulse, kIsPulse);
  pulse_.emplace(std::move(pulse));
  const auto [kind, all] = receive(0);
  if (kind != Kind::order) fail("the first of {} processes has ended", l.size);
  size_t at = 0;
  for (Place& place : places_) {
    const size_t space = all.find(' ', at), end = all.find('\n', at);
    if (space == all.npos || end == all.npos || space > end)
      fail("expected the address of each process, found less");
    place.address = all.substr(at, space - at);
    place.port = std::atoi(all.c_str() + space + 1);
    at = end + 1;
  }
}

// The job cannot go on without it: whoever waits for it, or for one that does, finds its connection
// ended.
void Job::give_up(int process) {
  fmt::print(stderr, "invar: process {} of the job, at {}, gives no sign of life\n", process,
             places_[static_cast<size_t>(process)].address);
  for (const auto& socket : controls_)
    if (socket) socket->shut_down();
  const std::lock_guard lock(meeting_);
  for (const auto& weak : met_)
    if (const auto socket = weak.lock()) socket->shut_down();
}

SecretSocket& Job::control(int process) const {
  return *controls_[static_cast<size_t>(process)];
}

bool Job::send(int process, Kind kind, std::string_view bytes) {
  return send_message(control(process), kind, bytes);
}

std::pair<Kind, std::string> Job::receive(int process) {
  Head head;
  if (!control(process).receive(&head, sizeof head)) return {Kind::end_job, {}};
  if (head.bytes > kMostBytes || head.kind < 1 || head.kind > 4)
    fail("a message of another rank: expected up to {} bytes of 4 kinds, found {} of kind {}",
         kMostBytes, head.bytes, head.kind);
  std::string bytes(head.bytes, '\0');
  if (!control(process).receive(bytes.data(), bytes.size())) return {Kind::end_job, {}};
  return {static_cast<Kind>(head.kind), std::move(bytes)};
}

bool Job::has_ended(int process) const {
  return control(process).has_hung_up();
}

// The process with the greater number connects: a chain that ends with the first one, which only
// listens.
std::vector<std::shared_ptr<SecretSocket>> Job::meet(const std::vector<int>& processes) {
  const int own = launch().rank;
  std::vector<std::shared_ptr<SecretSocket>> sockets(places_.size());
  int expected = 0;
  for (const int process : processes) {
    const Place& place = places_[static_cast<size_t>(process)];
    if (process > own) {
      ++expected;
    } else if (!sockets[process]) {
      sockets[process] = connect_to(place.address, place.port, secret_, kPatience);
      const int32_t number = own;
      sockets[process]->send(&number, sizeof number);
    }
  }
  for (; expected > 0; --expected) {
    std::shared_ptr<SecretSocket> socket = listener_->accept(kPatience);
    int32_t process = 0;
    if (!socket->receive(&process, sizeof process)) fail("another rank's process has ended");
    if (std::ranges::find(processes, process) == processes.end() || process <= own ||
        sockets[process])
      fail("expected a neighbour's process, found number {}", process);
    sockets[process] = std::move(socket);
  }
  const std::lock_guard lock(meeting_);
  met_.assign(sockets.begin(), sockets.end());  // of one model at a time
  return sockets;
}

}  // namespace invar::hosts
