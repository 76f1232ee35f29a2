// A client of torch's store: the questions byte for byte, and what it makes of answers that no such
// store gives.
#include "collectives/tcp_store.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "base/error.h"

namespace invar {
namespace {

using namespace std::chrono_literals;

template <typename T>
std::string as_bytes(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

const std::string kPong = as_bytes(uint32_t{0x1A5EED01});

// Somebody who says `answer` to whoever comes, keeps what was said, and ends then or stays.
class Scripted {
 public:
  explicit Scripted(std::string answer, bool ends = false) : answer_(std::move(answer)) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof own;
    auto* address = reinterpret_cast<sockaddr*>(&own);
    EXPECT_EQ(::bind(listener_.number(), address, size), 0);
    EXPECT_EQ(::listen(listener_.number(), 4), 0);
    EXPECT_EQ(::getsockname(listener_.number(), address, &size), 0);
    port = ntohs(own.sin_port);
    thread_ = std::thread([this, ends] {
      client_ = Socket(::accept(listener_.number(), nullptr, nullptr));
      send_all(client_.number(), answer_.data(), answer_.size());
      if (ends) ::shutdown(client_.number(), SHUT_WR);
      char some[256];
      while (const size_t count = receive_some(client_.number(), some, sizeof some))
        said.append(some, count);
    });
  }
  ~Scripted() { end(); }
  void end() {
    ::shutdown(client_.number(), SHUT_RDWR);
    ::shutdown(listener_.number(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }

  int port = 0;
  std::string said;  // after `end`

 private:
  const std::string answer_;
  Socket listener_{::socket(AF_INET, SOCK_STREAM, 0)};
  Socket client_;
  std::thread thread_;
};

// The sentence of an error, or nothing.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(TcpStore, AsksAsTorchsClientDoes) {
  Scripted store(kPong + as_bytes(int64_t{2}) + '\0' + as_bytes(uint64_t{5}) + "value");
  {
    TcpStore client("127.0.0.1", store.port, Deadline::in(10s));
    EXPECT_EQ(client.add("init/", 1, Deadline::in(10s)), 2);
    EXPECT_EQ(client.get("/key", 5, Deadline::in(10s)), "value");
    EXPECT_FALSE(client.has_ended());
  }
  store.end();
  const std::string key = as_bytes(uint64_t{4}) + "/key";
  EXPECT_EQ(store.said, '\0' + as_bytes(uint32_t{0x3C85F7CE}) + '\x0d' + kPong +               //
                            '\x04' + as_bytes(uint64_t{5}) + "init/" + as_bytes(int64_t{1}) +  //
                            '\x06' + as_bytes(uint64_t{1}) + key + '\x03' + key);
}

TEST(TcpStore, SaysWhatIsWrong) {
  const struct {
    const char* what;
    std::string answer;
    bool ends;
    const char* sentence;
  } cases[] = {
      {"another service", "HTTP/1.1 400 Bad Request\r\n", false, "expected torch's TCPStore"},
      {"one that goes at once", "", true, "the trainer has closed it"},
      {"one that is silent", "", false, "found nothing until the deadline"},
      {"one that goes after its hello", kPong, true, "the trainer has closed it"},
      {"a wait that is cancelled", kPong + '\1', false, "to say that /key is there, found 1"},
      {"a value that is too long", kPong + '\0' + as_bytes(uint64_t{5}), false,
       "expected at most 4 bytes of /key, found 5"},
      {"a value without end", kPong + '\0' + as_bytes(~uint64_t{0}), false,
       "found 18446744073709551615"},
      {"half a value", kPong + '\0' + as_bytes(uint64_t{4}) + "va", true,
       "the trainer has closed it"},
      {"half a length", kPong + '\0' + "abc", true, "the trainer has closed it"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.what);
    Scripted store(one.answer, one.ends);
    const std::string said = error_of([&] {
      TcpStore client("127.0.0.1", store.port, Deadline::in(300ms));
      client.get("/key", 4, Deadline::in(300ms));
    });
    EXPECT_NE(said.find(one.sentence), std::string::npos) << said;
  }
}

TEST(TcpStore, WaitsForOneThatDoesNotListenYetAndNoLonger) {
  int port = 0;
  { port = Scripted("").port; }
  const auto began = std::chrono::steady_clock::now();
  const std::string said = error_of([&] { TcpStore("127.0.0.1", port, Deadline::in(300ms)); });
  EXPECT_NE(said.find("found nothing until the deadline"), std::string::npos) << said;
  EXPECT_GE(std::chrono::steady_clock::now() - began, 300ms);
  EXPECT_NE(error_of([] {
              TcpStore("no.such.host.invalid", 1, Deadline::in(1s));
            }).find("expected the address of a trainer"),
            std::string::npos);
}

TEST(TcpStore, AWaitCanBeEnded) {
  Scripted store(kPong);
  std::stop_source stop;
  TcpStore client("127.0.0.1", store.port, Deadline::in(10s));
  std::jthread ends([&] {
    std::this_thread::sleep_for(50ms);
    stop.request_stop();
  });
  const std::string said =
      error_of([&] { client.get("/key", 4, Deadline::in(1h, stop.get_token())); });
  EXPECT_NE(said.find("was ended"), std::string::npos) << said;
}

}  // namespace
}  // namespace invar
