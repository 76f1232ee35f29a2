#include "base/secret_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/check.h"

namespace invar {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kGreeting = "invar ranks 1\n";

struct Addresses {
  Addresses(const char* host, int port, int flags) {
    const addrinfo wanted = {
        .ai_flags = flags | AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const int status = ::getaddrinfo(host, std::to_string(port).c_str(), &wanted, &first);
    if (status != 0)
      fail("the address {} of ranks: {}", host ? host : "of this host", ::gai_strerror(status));
  }
  ~Addresses() { ::freeaddrinfo(first); }
  Addresses(const Addresses&) = delete;
  addrinfo* first = nullptr;
};

Clock::time_point in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Whether there is something to read, or to take, before `until`.
bool is_ready(int socket, Clock::time_point until) {
  pollfd end{.fd = socket, .events = POLLIN, .revents = 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    const int found = ::poll(&end, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (found > 0) return true;
    if (left <= 0) return false;
  }
}

// Messages are short and waited for; a host that is gone is found out.
void set_up(int socket) {
  const auto set = [socket](int level, int name, int value) {
    ::setsockopt(socket, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 15'000);
}

std::string hmac(std::string_view key, std::string_view text) {
  std::string code(32, '\0');
  unsigned bytes = 0;
  CHECK(::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
               reinterpret_cast<const unsigned char*>(text.data()), text.size(),
               reinterpret_cast<unsigned char*>(code.data()), &bytes) &&
            bytes == 32,
        "codes of messages can be computed");
  return code;
}

bool are_same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// The greeting of both ends, within a time for all of it. Each proves that it knows the secret by a
// code over both random words, the other's before its own: so nothing of another connection helps.
class Greeting {
 public:
  Greeting(int socket, std::string_view secret) : socket_(socket), secret_(secret) {
    CHECK(::RAND_bytes(reinterpret_cast<unsigned char*>(mine_.data()), 32) == 1, "random bytes");
  }

  std::string as_first() {
    say(std::string(kGreeting) + mine_);
    its_ = hear(32);
    expect(hmac(secret_, "second" + mine_ + its_));
    say(hmac(secret_, "first" + mine_ + its_));
    return hmac(secret_, "key" + mine_ + its_);
  }
  std::string as_second() {
    if (hear(kGreeting.size()) != kGreeting) fail("expected another rank, found a stranger");
    its_ = hear(32);
    say(mine_ + hmac(secret_, "second" + its_ + mine_));
    expect(hmac(secret_, "first" + its_ + mine_));
    return hmac(secret_, "key" + its_ + mine_);
  }

 private:
  void say(const std::string& words) const {
    if (!send_all(socket_, words.data(), words.size()))  // less than any socket holds
      throw SecretSocket::NoGreeting("another rank's connection has ended");
  }
  std::string hear(size_t bytes) const {
    std::string words(bytes, '\0');
    for (size_t at = 0; at < bytes;) {
      const size_t received =
          is_ready(socket_, until_) ? receive_some(socket_, words.data() + at, bytes - at) : 0;
      if (received == 0)
        throw SecretSocket::NoGreeting(
            "another rank's connection ended before it had said that it knows the secret");
      at += received;
    }
    return words;
  }
  void expect(const std::string& code) const {
    if (!are_same(hear(code.size()), code))
      fail("another rank does not know the secret: INVAR_SECRET is not the same everywhere");
  }

  const int socket_;
  const std::string_view secret_;
  const Clock::time_point until_ = in_seconds(SecretSocket::kGreetingSeconds);
  std::string mine_ = std::string(32, '\0'), its_;
};

}  // namespace

SecretSocket::SecretSocket(Socket socket, std::string_view secret, bool is_first)
    : socket_(std::move(socket)), address_(peer_address()), is_first_(is_first) {
  set_up(number());
  Greeting greeting(number(), secret);
  key_ = is_first ? greeting.as_first() : greeting.as_second();
}

// Over who sends and the number of the message, too: none can be repeated, left out or sent back.
SecretSocket::Code SecretSocket::code_of(uint8_t from, uint64_t number, const void* data,
                                         size_t bytes) const {
  struct Freed {
    void operator()(EVP_MAC* mac) const { ::EVP_MAC_free(mac); }
    void operator()(EVP_MAC_CTX* context) const { ::EVP_MAC_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MAC, Freed> mac(::EVP_MAC_fetch(nullptr, "HMAC", nullptr));
  const std::unique_ptr<EVP_MAC_CTX, Freed> context(::EVP_MAC_CTX_new(mac.get()));
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {::OSSL_PARAM_construct_utf8_string("digest", digest, 0),
                                   ::OSSL_PARAM_construct_end()};
  const auto key = reinterpret_cast<const unsigned char*>(key_.data());
  Code code{};
  size_t found = 0;
  const bool done =
      context && ::EVP_MAC_init(context.get(), key, key_.size(), parameters) == 1 &&
      ::EVP_MAC_update(context.get(), &from, 1) == 1 &&
      ::EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(&number),
                       sizeof number) == 1 &&
      ::EVP_MAC_update(context.get(), static_cast<const unsigned char*>(data), bytes) == 1 &&
      ::EVP_MAC_final(context.get(), code.data(), &found, code.size()) == 1 && found == code.size();
  CHECK(done, "codes of messages can be computed");
  return code;
}

bool SecretSocket::send(const void* data, size_t bytes) {
  constexpr size_t kTogether = 64 << 10;  // in one packet, where there is room
  const Code code = code_of(is_first_, sent_++, data, bytes);
  if (bytes > kTogether)
    return send_all(number(), code.data(), code.size()) && send_all(number(), data, bytes);
  std::string all(reinterpret_cast<const char*>(code.data()), code.size());
  all.append(static_cast<const char*>(data), bytes);
  return send_all(number(), all.data(), all.size());
}

bool SecretSocket::receive(void* data, size_t bytes) {
  Code code;
  if (!receive_all(number(), code.data(), code.size()) || !receive_all(number(), data, bytes))
    return false;
  const Code expected = code_of(!is_first_, received_++, data, bytes);
  if (::CRYPTO_memcmp(code.data(), expected.data(), code.size()) != 0)
    fail("a message between ranks was changed on its way");
  return true;
}

void SecretSocket::shut_down() {
  ::shutdown(number(), SHUT_RDWR);
}

bool SecretSocket::has_hung_up() const {
  pollfd end{.fd = number(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&end, 1, 0) > 0;
}

namespace {

template <typename Ask>
std::string address_of(int socket, Ask ask) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  char text[NI_MAXHOST] = "";
  if (ask(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0)
    fail("the address of a rank is not known: {}", std::strerror(errno));
  return text;
}

}  // namespace

std::string SecretSocket::peer_address() const {
  return address_of(number(), ::getpeername);
}
std::string SecretSocket::own_address() const {
  return address_of(number(), ::getsockname);
}

SecretListener::SecretListener(const std::string& address, int port, std::string secret)
    : secret_(std::move(secret)) {
  const Addresses found(address.empty() ? nullptr : address.c_str(), port, AI_PASSIVE);
  int wrong = 0;
  for (const addrinfo* at = found.first; at; at = at->ai_next) {
    Socket one(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
    const int yes = 1;
    ::setsockopt(one.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(one.number(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(one.number(), 64) == 0) {
      socket_ = std::move(one);
      return;
    }
    wrong = errno;
  }
  fail("ranks cannot be listened for at {}:{}: {}", address, port, std::strerror(wrong));
}

int SecretListener::port() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  ::getsockname(socket_.number(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::unique_ptr<SecretSocket> SecretListener::accept(double seconds) {
  constexpr int kNap = 20;  // ms between two looks at greetings
  const auto until = in_seconds(seconds);
  while (true) {
    if (Greeted one = take_greeted()) return one;
    if (Clock::now() >= until) fail("expected another rank within {} seconds, found none", seconds);
    take_connection(kNap);
  }
}

// One of those that have ended well, or null.
SecretListener::Greeted SecretListener::take_greeted() {
  for (auto at = greetings_.begin(); at != greetings_.end();) {
    if (at->wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      ++at;
      continue;
    }
    Greeted one = at->get();
    at = greetings_.erase(at);
    if (one) return one;
  }
  return nullptr;
}

// Begins to greet the next who comes within so many ms.
void SecretListener::take_connection(int wait_ms) {
  const auto until = in_seconds(wait_ms / 1000.0);
  if (greetings_.size() == kMostGreetings) {
    greetings_.front().wait_until(until);
    return;
  }
  if (!is_ready(socket_.number(), until)) return;
  Socket one(::accept4(socket_.number(), nullptr, nullptr, SOCK_CLOEXEC));
  if (one.number() < 0) return;
  greetings_.push_back(
      std::async(std::launch::async, [this, one = std::move(one)]() mutable -> Greeted {
        try {
          return std::make_unique<SecretSocket>(std::move(one), secret_, false);
        } catch (const Error&) {  // a stranger
          return nullptr;
        }
      }));
}

namespace {

// A connection to one of the addresses that has greeted. Null where none is listened at, or greets:
// `wrong` says why.
std::unique_ptr<SecretSocket> try_to_connect(const std::string& host, int port,
                                             std::string_view secret, std::string& wrong) {
  const Addresses found(host.c_str(), port, 0);
  for (const addrinfo* at = found.first; at; at = at->ai_next) {
    Socket one(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
    if (::connect(one.number(), at->ai_addr, at->ai_addrlen) != 0) {
      wrong = std::strerror(errno);
      continue;
    }
    try {
      return std::make_unique<SecretSocket>(std::move(one), secret, true);
    } catch (const SecretSocket::NoGreeting& error) {
      wrong = error.what();
    }
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<SecretSocket> connect_to(const std::string& host, int port, std::string_view secret,
                                         double seconds) {
  const auto until = in_seconds(seconds);
  std::string wrong;
  do {
    if (auto socket = try_to_connect(host, port, secret, wrong)) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  } while (Clock::now() < until);
  fail("expected another rank at {}:{}, found none in {} seconds: {}", host, port, seconds, wrong);
}

}  // namespace invar
