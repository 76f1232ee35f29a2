#include "engine/host_pulse.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace invar::hosts {

namespace {

using namespace std::chrono_literals;

constexpr auto kBeat = 200ms, kApart = 100ms;
constexpr auto kGrace = 10s;

// False when the thread is to end.
bool nap(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, time, [] { return false; });
  return !stop.stop_requested();
}

bool is_gone(ssize_t status) {
  return status == 0 || (status < 0 && errno != EAGAIN && errno != EINTR);
}

void beat(const std::stop_token& stop, int socket) {
  do {
    if (!is_gone(::send(socket, ".", 1, MSG_NOSIGNAL | MSG_DONTWAIT))) continue;
    if (!nap(stop, kGrace)) return;
    fmt::print(stderr, "invar: the first process of the job is gone\n");
    std::_Exit(1);
  } while (nap(stop, kBeat));
}

}  // namespace

HostPulse::HostPulse(std::unique_ptr<SecretSocket> to_first)
    : socket_(std::move(to_first)),
      thread_([this](const std::stop_token& stop) { beat(stop, socket_->number()); }) {}

HostPulseWatch::HostPulseWatch(std::vector<std::unique_ptr<SecretSocket>> others,
                               std::function<void(int process)> trouble)
    : trouble_(std::move(trouble)) {
  for (auto& socket : others) others_.push_back({.socket = std::move(socket)});
  thread_ = std::jthread([this](const std::stop_token& stop) {
    while (nap(stop, kApart)) look();
  });
}

void HostPulseWatch::look() {
  for (size_t process = 0; process < others_.size(); ++process) {
    Other& other = others_[process];
    if (!other.socket) continue;
    char signs[256];
    const ssize_t got = ::recv(other.socket->number(), signs, sizeof signs, MSG_DONTWAIT);
    if (is_gone(got)) {  // its other connections end, too
      other.socket = nullptr;
      continue;
    }
    other.looks = got > 0 ? 0 : other.looks + 1;
    if (other.looks <= kLooks) continue;
    other.socket = nullptr;
    trouble_(static_cast<int>(process));
  }
}

}  // namespace invar::hosts
