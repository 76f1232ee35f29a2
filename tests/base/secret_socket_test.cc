// Connections between hosts: who does not know the secret learns nothing, and nothing that was
// changed, repeated or left out on the way is believed.
#include "base/secret_socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <future>
#include <thread>

#include "base/error.h"

namespace invar {
namespace {

constexpr const char *kHost = "127.0.0.1", *kSecret = "what all ranks know";

struct Pair {
  std::unique_ptr<SecretSocket> first, second;
};

Pair connected() {
  SecretListener listener(kHost, 0, kSecret);
  auto first = std::async(std::launch::async,
                          [&] { return connect_to(kHost, listener.port(), kSecret, 5); });
  Pair pair;
  pair.second = listener.accept(5);
  pair.first = first.get();
  return pair;
}

Socket raw_connection(int port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  ::inet_pton(AF_INET, kHost, &address.sin_addr);
  EXPECT_EQ(::connect(socket.number(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

TEST(SecretSocket, CarriesMessagesBothWays) {
  const Pair pair = connected();
  const std::string large(300'000, 'x');
  auto sending = std::async(std::launch::async, [&] {
    return pair.first->send("hello", 5) && pair.first->send(large.data(), large.size());
  });
  std::string words(5, ' '), all(large.size(), ' ');
  EXPECT_TRUE(pair.second->receive(words.data(), 5));
  EXPECT_TRUE(pair.second->receive(all.data(), all.size()));
  EXPECT_TRUE(sending.get());
  EXPECT_EQ(words + all, "hello" + large);
  EXPECT_TRUE(pair.second->send("", 0));
  EXPECT_TRUE(pair.first->receive(words.data(), 0));
  EXPECT_FALSE(pair.first->has_hung_up());
  pair.second->shut_down();
  EXPECT_FALSE(pair.first->receive(words.data(), 5));
  EXPECT_TRUE(pair.first->has_hung_up());
}

TEST(SecretSocket, WhoKnowsAnotherSecretIsRefused) {
  SecretListener listener(kHost, 0, kSecret);
  auto wrong = std::async(std::launch::async, [&] {
    EXPECT_THROW(connect_to(kHost, listener.port(), "another", 5), Error);
    return connect_to(kHost, listener.port(), kSecret, 5);
  });
  EXPECT_NE(listener.accept(5), nullptr);  // the first is passed over
  EXPECT_NE(wrong.get(), nullptr);
  EXPECT_THROW(listener.accept(0.1), Error);
}

TEST(SecretSocket, StrangersAreClosedAndHearNothing) {
  SecretListener listener(kHost, 0, kSecret);
  const Socket silent = raw_connection(listener.port()), loud = raw_connection(listener.port());
  const std::string rubbish(200, 'G');
  ::send(loud.number(), rubbish.data(), rubbish.size(), MSG_NOSIGNAL);
  ::shutdown(silent.number(), SHUT_WR);
  auto friendly = std::async(std::launch::async,
                             [&] { return connect_to(kHost, listener.port(), kSecret, 9); });
  EXPECT_NE(listener.accept(20), nullptr);
  EXPECT_NE(friendly.get(), nullptr);
  char byte = 0;
  EXPECT_LE(::recv(silent.number(), &byte, 1, 0), 0);
  EXPECT_LE(::recv(loud.number(), &byte, 1, 0), 0);
}

// Each alone would keep a listener that greets one after the other for the time of a greeting.
TEST(SecretSocket, SilentStrangersKeepNobodyWaiting) {
  SecretListener listener(kHost, 0, kSecret);
  std::vector<Socket> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(raw_connection(listener.port()));
  const auto before = std::chrono::steady_clock::now();
  auto friendly = std::async(std::launch::async,
                             [&] { return connect_to(kHost, listener.port(), kSecret, 9); });
  EXPECT_NE(listener.accept(20), nullptr);
  EXPECT_NE(friendly.get(), nullptr);
  EXPECT_LT(std::chrono::steady_clock::now() - before,
            std::chrono::seconds(SecretSocket::kGreetingSeconds));
}

// A byte now and then is a sign of life and no greeting.
TEST(SecretSocket, TheWholeGreetingHasADeadline) {
  SecretListener listener(kHost, 0, kSecret);
  const Socket slow = raw_connection(listener.port());
  std::jthread dripping([&](const std::stop_token& stop) {
    const std::string greeting = "invar ranks 1\n" + std::string(200, 'x');
    for (size_t i = 0; i < greeting.size() && !stop.stop_requested(); ++i) {
      ::send(slow.number(), &greeting[i], 1, MSG_NOSIGNAL);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
  });
  const auto before = std::chrono::steady_clock::now();
  EXPECT_THROW(listener.accept(SecretSocket::kGreetingSeconds + 2), Error);
  EXPECT_LT(std::chrono::steady_clock::now() - before,
            std::chrono::seconds(SecretSocket::kGreetingSeconds + 4));
  char byte = 0;
  EXPECT_LE(::recv(slow.number(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_NE(errno, EAGAIN);  // it is closed
}

// Who listens may be busy for longer than a greeting takes.
TEST(SecretSocket, WhoIsNotGreetedTriesAgain) {
  SecretListener listener(kHost, 0, kSecret);
  auto early = std::async(std::launch::async,
                          [&] { return connect_to(kHost, listener.port(), kSecret, 30); });
  std::this_thread::sleep_for(std::chrono::seconds(SecretSocket::kGreetingSeconds + 1));
  const auto accepted = listener.accept(20);
  const auto connected = early.get();
  ASSERT_TRUE(accepted && connected);
  char byte = 0;
  EXPECT_TRUE(connected->send("x", 1) && accepted->receive(&byte, 1));
}

// Somebody in the middle: hands on what both ends say, and does something to the last message.
class Middle {
 public:
  enum class Does { nothing, changes_a_byte, repeats, leaves_out };
  explicit Middle(Does does) : does_(does) {
    SecretListener listener(kHost, 0, kSecret);
    Socket to_first, to_second = raw_connection(listener.port());
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    to_first = Socket(ends[0]);
    from_first_ =
        std::jthread([this, a = to_first.number(), b = to_second.number()] { hand(a, b); });
    from_second_ = std::jthread([a = to_second.number(), b = to_first.number()] {
      char bytes[4096];
      for (ssize_t n = 0; (n = ::recv(a, bytes, sizeof bytes, 0)) > 0;)
        ::send(b, bytes, static_cast<size_t>(n), MSG_NOSIGNAL);
    });
    auto first = std::async(std::launch::async, [&] {
      return std::make_unique<SecretSocket>(Socket(ends[1]), kSecret, true);
    });
    second = listener.accept(5);
    this->first = first.get();
    to_first_ = std::move(to_first);
    to_second_ = std::move(to_second);
  }
  ~Middle() {
    ::shutdown(to_first_.number(), SHUT_RDWR);
    ::shutdown(to_second_.number(), SHUT_RDWR);
  }

  std::unique_ptr<SecretSocket> first, second;

 private:
  static constexpr size_t kGreeting = 14 + 32 + 32, kMessage = 32 + 5;  // a code and "hello"
  void hand(int from, int to) const {
    std::string bytes(kGreeting, ' ');
    ::recv(from, bytes.data(), 46, MSG_WAITALL);
    ::send(to, bytes.data(), 46, MSG_NOSIGNAL);
    ::recv(from, bytes.data(), 32, MSG_WAITALL);
    ::send(to, bytes.data(), 32, MSG_NOSIGNAL);
    for (int number = 0; ::recv(from, bytes.data(), kMessage, MSG_WAITALL) == kMessage; ++number) {
      if (number == 1 && does_ == Does::changes_a_byte) bytes[kMessage - 1] ^= 1;
      if (number == 1 && does_ == Does::leaves_out) continue;
      ::send(to, bytes.data(), kMessage, MSG_NOSIGNAL);
      if (number == 0 && does_ == Does::repeats) ::send(to, bytes.data(), kMessage, MSG_NOSIGNAL);
    }
  }

  const Does does_;
  Socket to_first_, to_second_;
  std::jthread from_first_, from_second_;
};

TEST(SecretSocket, WhatIsChangedOnTheWayIsNotBelieved) {
  using Does = Middle::Does;
  for (const Does does : {Does::nothing, Does::changes_a_byte, Does::repeats, Does::leaves_out}) {
    const Middle middle(does);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(middle.first->send("hello", 5));
    std::string words(5, ' ');
    EXPECT_TRUE(middle.second->receive(words.data(), 5));
    EXPECT_EQ(words, "hello");
    if (does == Does::nothing)  // the control
      EXPECT_TRUE(middle.second->receive(words.data(), 5));
    else
      EXPECT_THROW(middle.second->receive(words.data(), 5), Error);
  }
}

}  // namespace
}  // namespace invar
