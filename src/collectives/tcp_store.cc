#include "collectives/tcp_store.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"

namespace invar {

namespace {

constexpr int kLookMs = 20;  // between looks at the clock
constexpr auto kRetry = std::chrono::milliseconds(100);

// The first byte of a question. A text is its length in 8 bytes and its bytes.
enum class Query : uint8_t { validate = 0, get = 3, add = 4, wait = 6, ping = 13 };
constexpr uint32_t kMagic = 0x3C85F7CE;
constexpr uint8_t kStopWaiting = 0;

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, const std::string& text) {
  put(out, static_cast<uint64_t>(text.size()));
  out += text;
}

std::string question(Query query) {
  return {static_cast<char>(query)};
}

// Waits a little for the socket to be ready.
bool is_ready(int socket, short events) {
  pollfd one{.fd = socket, .events = events, .revents = 0};
  return ::poll(&one, 1, kLookMs) > 0;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses addresses_of(const std::string& host, int port) {
  const addrinfo hints{.ai_flags = AI_NUMERICSERV,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM,
                       .ai_protocol = 0,
                       .ai_addrlen = 0,
                       .ai_addr = nullptr,
                       .ai_canonname = nullptr,
                       .ai_next = nullptr};
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0)
    fail_usage("expected the address of a trainer, found {}: {}", host, ::gai_strerror(status));
  return {found, ::freeaddrinfo};
}

// The error of the attempt; 0: it is connected.
int error_of(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

int connect_within(int socket, const addrinfo& to, const Deadline& deadline,
                   const std::string& waited_for) {
  if (::connect(socket, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  while (!is_ready(socket, POLLOUT)) deadline.expect_time(waited_for);
  return error_of(socket);
}

// One that does not block.
Socket connected(const std::string& host, int port, const Deadline& deadline) {
  const Addresses addresses = addresses_of(host, port);
  while (true) {
    int error = 0;
    for (const addrinfo* to = addresses.get(); to; to = to->ai_next) {
      Socket socket(::socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (socket.number() < 0) fail("no socket can be made: {}", std::strerror(errno));
      error = connect_within(socket.number(), *to, deadline,
                             fmt::format("a trainer's store at {}:{}", host, port));
      if (error != 0) continue;
      const int on = 1;
      ::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return socket;
    }
    deadline.expect_time(
        fmt::format("a trainer's store at {}:{} ({})", host, port, std::strerror(error)));
    std::this_thread::sleep_for(kRetry);
  }
}

}  // namespace

void Deadline::expect_time(const std::string& waited_for) const {
  if (stop.stop_requested()) fail("the wait for {} was ended", waited_for);
  if (std::chrono::steady_clock::now() >= at)
    fail("expected {} in time, found nothing until the deadline", waited_for);
}

TcpStore::TcpStore(const std::string& host, int port, const Deadline& deadline)
    : where_(fmt::format("the store at {}:{}", host, port)),
      socket_(connected(host, port, deadline)) {
  check_kind(deadline);
}

// A store gives the number of a ping back. Another service says something else, or nothing.
void TcpStore::check_kind(const Deadline& deadline) {
  constexpr uint32_t kNumber = 0x1A5EED01;
  std::string hello = question(Query::validate);
  put(hello, kMagic);
  hello += question(Query::ping);
  put(hello, kNumber);
  send(hello, deadline);
  if (const auto found = receive_number<uint32_t>(deadline); found != kNumber)
    fail("expected torch's TCPStore as {}, found a service that answers its ping with {:#x}",
         where_, found);
}

int64_t TcpStore::add(const std::string& key, int64_t value, const Deadline& deadline) {
  std::string asked = question(Query::add);
  put_text(asked, key);
  put(asked, value);
  send(asked, deadline);
  return receive_number<int64_t>(deadline);
}

std::string TcpStore::get(const std::string& key, size_t most_bytes, const Deadline& deadline) {
  std::string asked = question(Query::wait);
  put(asked, uint64_t{1});
  put_text(asked, key);
  send(asked, deadline);
  if (const auto found = receive_number<uint8_t>(deadline); found != kStopWaiting)
    fail("expected {} to say that {} is there, found {}", where_, key, found);
  asked = question(Query::get);
  put_text(asked, key);
  send(asked, deadline);
  const auto size = receive_number<uint64_t>(deadline);
  if (size > most_bytes)
    fail("{}: expected at most {} bytes of {}, found {}", where_, most_bytes, key, size);
  std::string value(static_cast<size_t>(size), '\0');
  receive(value.data(), value.size(), deadline);
  return value;
}

bool TcpStore::has_ended() const {
  char byte = 0;
  const ssize_t found = ::recv(socket_.number(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return found == 0 || (found < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void TcpStore::send(const std::string& bytes, const Deadline& deadline) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t some =
        ::send(socket_.number(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (some > 0) sent += static_cast<size_t>(some);
    if (some < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      fail("expected {} to take a question, found: {}", where_, std::strerror(errno));
    if (some > 0) continue;
    deadline.expect_time(where_);
    is_ready(socket_.number(), POLLOUT);
  }
}

void TcpStore::receive(void* data, size_t bytes, const Deadline& deadline) {
  for (size_t got = 0; got < bytes;) {
    const ssize_t some =
        ::recv(socket_.number(), static_cast<char*>(data) + got, bytes - got, MSG_DONTWAIT);
    if (some > 0) got += static_cast<size_t>(some);
    if (some == 0) fail("expected an answer of {}, found that the trainer has closed it", where_);
    if (some < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      fail("expected an answer of {}, found: {}", where_, std::strerror(errno));
    if (some > 0) continue;
    deadline.expect_time("an answer of " + where_);
    is_ready(socket_.number(), POLLIN);
  }
}

template <typename T>
T TcpStore::receive_number(const Deadline& deadline) {
  T number{};
  receive(&number, sizeof number, deadline);
  return number;
}

}  // namespace invar
