// A client that goes, or whose deadline passes, while the form of its answer is compiled: the
// requests reach the backend after the answer is over, and nobody wants them.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <set>
#include <thread>

#include "server/api.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::server {
namespace {

// Takes requests when it is told to, and knows which of them it would be computing.
class SlowBackend final : public Backend {
 public:
  void start(BackendSink&) override {}
  void stop() override {}
  BackendFacts facts() const override {
    return {.identity = "none", .vocab = 512, .max_model_len = 256};
  }
  BackendStats stats() const override { return {}; }
  void submit(Request request) override {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return takes_; });
    live_.insert(request.id);
    ++taken_;
    changed_.notify_all();
  }
  void cancel(int64_t id) override {
    const std::lock_guard lock(mutex_);
    live_.erase(id);
    ++cancelled_;
    changed_.notify_all();
  }
  void take_requests() {
    const std::lock_guard lock(mutex_);
    takes_ = true;
    changed_.notify_all();
  }
  // Whether it comes to that within seconds.
  bool comes_to(int asked, int taken, int cancelled, size_t live) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] {
      return asked_ >= asked && taken_ >= taken && cancelled_ >= cancelled && live_.size() == live;
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool takes_ = false;
  int asked_ = 0, taken_ = 0, cancelled_ = 0;
  std::set<int64_t> live_;
};

int sent(int port, const std::string& headers, const std::string& body) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string request = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + headers +
                              "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  EXPECT_EQ(::send(socket, request.data(), request.size(), 0), std::ssize(request));
  return socket;
}

// Of an answer of two requests: the first is on its way to the backend when the answer is ended.
void expect_no_request_is_left(const std::string& headers, bool client_goes) {
  const Tokenizer tokenizer = Tokenizer::from_texts(make_tokenizer(512, 1).texts, "made");
  SlowBackend backend;
  const ServedModel served{.names = {"m"}, .tokenizer = &tokenizer};
  ServerOptions options;
  options.http.host = "127.0.0.1";
  options.http.port = 0;
  Server server(options, served, backend, nullptr);
  std::jthread serving([&] { server.run(); });
  const int client =
      sent(server.port(), headers,
           R"({"prompt": [1, 2, 3], "n": 2, "max_tokens": 100, "guided_regex": "[a-z]+"})");
  EXPECT_TRUE(backend.comes_to(1, 0, 0, 0));
  if (client_goes) ::close(client);
  EXPECT_TRUE(backend.comes_to(1, 0, 2, 0)) << "the answer is over";
  backend.take_requests();
  EXPECT_TRUE(backend.comes_to(2, 2, 4, 0)) << "requests that nobody wants are computed";
  ::raise(SIGTERM);
  serving.join();
  if (!client_goes) ::close(client);
}

TEST(Cancelled, AClientThatGoesWhileItsFormIsCompiledLeavesNoRequest) {
  expect_no_request_is_left("", true);
}

TEST(Cancelled, ADeadlineThatPassesWhileAFormIsCompiledLeavesNoRequest) {
  expect_no_request_is_left("X-Request-Timeout: 0.3\r\n", false);
}

}  // namespace
}  // namespace invar::server
