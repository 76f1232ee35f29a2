// Streams over HTTP whose source has more while the socket takes nothing.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "local_client.h"
#include "server/http.h"

namespace invar::server {
namespace {

struct Source final : BodySource {
  bool pull(std::string& out) override {
    out += std::exchange(ready, {});
    return !is_over;
  }
  std::string ready;
  bool is_over = false;
};

// A client that waits at most ten seconds for each piece.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval wait{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    EXPECT_EQ(::send(socket_, request.data(), request.size(), 0), std::ssize(request));
  }
  ~Client() { ::close(socket_); }

  // Everything up to `end`, or what came before nothing came for too long.
  std::string read_until(std::string_view end) {
    std::string all, piece(1 << 20, 0);
    while (!all.ends_with(end)) {
      const ssize_t size = ::recv(socket_, piece.data(), piece.size(), 0);
      if (size <= 0) break;
      all.append(piece, 0, static_cast<size_t>(size));
    }
    return all;
  }

 private:
  int socket_;
};

// The first event does not fit the socket, so that the coroutine is to send its rest; the second
// comes before it has begun.
TEST(StreamTest, SendsWhatComesBeforeTheSenderIsAwake) {
  const auto source = std::make_shared<Source>();
  std::shared_ptr<Exchange> exchange;
  HttpServer server(
      {.host = "127.0.0.1", .port = 0}, [](const HttpRequest&) { return Passage{}; },
      [&](std::shared_ptr<Exchange> e) {
        exchange = e;
        e->stream({}, source);
      },
      [](int status, const std::string&, const std::string&) {
        return HttpReply{.status = status};
      });
  std::jthread serving([&] { server.run(); });
  {
    Client client(server.port());
    EXPECT_TRUE(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
    server.post([&] {
      source->ready = std::string(64 << 20, 'x');
      exchange->wake();
      source->ready = "the end";
      source->is_over = true;
      exchange->wake();
      exchange = nullptr;
    });
    const std::string body = client.read_until("0\r\n\r\n");
    EXPECT_GT(body.size(), size_t{64} << 20);
    EXPECT_TRUE(body.ends_with("the end\r\n0\r\n\r\n"));
  }
  server.post([&] { server.stop(); });
}

// A handler that throws loses its own connection; a task that throws nothing but itself.
TEST(ServingThread, OutlivesWhatThrowsOnIt) {
  int asked = 0;
  HttpServer server(
      {.host = "127.0.0.1", .port = 0}, [](const HttpRequest&) { return Passage{}; },
      [&](std::shared_ptr<Exchange> exchange) {
        if (asked++ == 0) throw std::out_of_range("a handler");
        exchange->reply({.body = "there"});
      },
      [](int status, const std::string&, const std::string&) {
        return HttpReply{.status = status};
      });
  server.post([] { throw std::out_of_range("a task"); });
  const auto timer =
      server.at(std::chrono::steady_clock::now(), [] { throw std::out_of_range("a timer"); });
  std::jthread serving([&] { server.run(); });
  EXPECT_EQ(Client(server.port()).read_until("there"), "");
  EXPECT_TRUE(Client(server.port()).read_until("there").ends_with("there"));
  server.post([&] {
    EXPECT_EQ(server.counts().exchanges, 0u);
    server.stop();
  });
}

// The side that closes a connection first keeps its port busy for a minute, but not for a server
// that is started again.
TEST(ServingThread, ListensWhereAnotherHasJustEnded) {
  int port = 0;
  for (int life = 0; life < 2; ++life) {
    HttpServer server(
        {.host = "127.0.0.1", .port = port}, [](const HttpRequest&) { return Passage{}; },
        [](std::shared_ptr<Exchange> exchange) { exchange->reply({.body = "there"}); },
        [](int status, const std::string&, const std::string&) {
          return HttpReply{.status = status};
        });
    port = server.port();
    std::jthread serving([&] { server.run(); });
    Client client(port);
    EXPECT_TRUE(client.read_until("there").ends_with("there"));
    server.post([&] { server.stop(); });
    serving.join();
    EXPECT_EQ(client.read_until("x"), "") << "the server has closed it";
  }
}

// The bytes that have come of them have a bound for all; a small one is served beside them.
TEST(ServingThread, HeadersThatHaveNotComeAsAWholeShareRoom) {
  HttpServer server(
      {.host = "127.0.0.1", .port = 0}, [](const HttpRequest&) { return Passage{}; },
      [](std::shared_ptr<Exchange> exchange) { exchange->reply({.body = "there"}); },
      [](int status, const std::string&, const std::string&) {
        return HttpReply{.status = status};
      });
  std::jthread serving([&] { server.run(); });
  {
    const std::string head = "GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(60'000, 'x');
    std::vector<std::unique_ptr<LocalClient>> clients;
    for (int i = 0; i < 300; ++i)
      clients.push_back(std::make_unique<LocalClient>(server.port(), head));
    EXPECT_EQ(clients.back()->status(), 503);
    EXPECT_EQ(LocalClient(server.port(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n").status(), 200);
    const auto refused =
        std::ranges::count_if(clients, [](const auto& one) { return one->has_answer(); });
    EXPECT_GT(refused, 0);
    EXPECT_LT(refused, 100) << "there is room for 279 of them";
  }
  server.post([&] { server.stop(); });
}

}  // namespace
}  // namespace invar::server
