// An engine whose device fails in the middle of a step, under a server in the same process: every
// answer in flight ends with an error, and the server with a sentence.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <new>
#include <thread>

#include "model/trace.h"
#include "server/api.h"
#include "server/inproc_backend.h"
#include "server/replicas.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::server {
namespace {

enum class Fault { none, device, memory };

// Sees every operation of a step, and throws in one what a device or the system would: when both
// requests have computed a few tokens, for which the first one waits a little in every step.
class FaultyDevice final : public Trace {
 public:
  explicit FaultyDevice(Fault fault) : fault_(fault) {}
  void begin_step(std::span<const TracedRow> rows) override {
    const bool both = std::ranges::any_of(
        rows, [&](const TracedRow& row) { return row.request != rows.front().request; });
    if (both)
      ++steps_of_both_;
    else if (fault_ != Fault::none)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  void record(const TracedOp&) override {
    if (steps_of_both_ < 5) return;
    if (fault_ == Fault::device) throw Error("cuda: an illegal memory access was encountered");
    if (fault_ == Fault::memory) throw std::bad_alloc();
  }

 private:
  const Fault fault_;
  int steps_of_both_ = 0;
};

std::string ask(int port, const std::string& body) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval wait{.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  EXPECT_EQ(::send(socket, request.data(), request.size(), 0), std::ssize(request));
  std::string all, piece(1 << 16, 0);
  for (ssize_t size; (size = ::recv(socket, piece.data(), piece.size(), 0)) > 0;)
    all.append(piece, 0, static_cast<size_t>(size));
  ::close(socket);
  return all;
}

// What a server with this fault says: to a stream, to who waits for a whole answer, at its end.
struct Outcomes {
  std::string stream, whole, end;
};

Outcomes served_with(Fault fault, int ranks = 1) {
  const Tokenizer tokenizer = Tokenizer::from_texts(make_tokenizer(512, 1).texts, "made");
  InstanceOptions options{
      .model = {.model = "tiny", .load_format = "dummy:7", .threads = 2, .ranks = ranks}};
  options.engine.kv_bytes = 32 << 20;
  options.engine.scheduler.max_model_len = 256;
  Instance instance(options);
  FaultyDevice device(fault);
  instance.engine().set_trace(&device);
  InprocReplicas replicas(instance, tokenizer);  // as invar serve has it
  ServedModel served{.names = {"m"}, .tokenizer = &tokenizer};
  ServerOptions server_options;
  server_options.http.host = "127.0.0.1";
  server_options.http.port = 0;
  Server server(server_options, served, replicas, nullptr);
  Outcomes out;
  std::promise<void> over;
  std::jthread serving([&] {
    try {
      server.run();
    } catch (const EngineFailed& error) {
      out.end = error.what();
    }
    over.set_value();
  });
  const std::string body = R"("prompt": [1, 2, 3], "max_tokens": 200, "seed": 1)";
  auto stream = std::async([&] { return ask(server.port(), "{" + body + ", \"stream\": true}"); });
  auto whole = std::async([&] { return ask(server.port(), "{" + body + "}"); });
  out.stream = stream.get();
  out.whole = whole.get();
  auto ended = over.get_future();
  if (fault == Fault::none) ::raise(SIGTERM);
  if (ended.wait_for(std::chrono::seconds(20)) != std::future_status::ready) std::abort();
  return out;
}

TEST(EngineFailure, EndsAnswersWithAnErrorAndTheServerWithASentence) {
  for (const auto& [fault, why] :
       {std::pair{Fault::device, "cuda: an illegal memory access was encountered"},
        {Fault::memory, "std::bad_alloc"}}) {
    const std::string sentence = std::string("the engine failed: ") + why;
    // The first of two ranks fails as an only one does: the other does not wait for it for ever.
    EXPECT_EQ(served_with(fault, 2).end, sentence);
    const Outcomes out = served_with(fault);
    EXPECT_EQ(out.end, sentence);
    EXPECT_TRUE(out.stream.starts_with("HTTP/1.1 200 ")) << out.stream;  // tokens had come
    EXPECT_NE(out.stream.find(sentence), std::string::npos) << out.stream;
    EXPECT_NE(out.stream.find("engine_failed"), std::string::npos);
    EXPECT_NE(out.stream.find("data: [DONE]"), std::string::npos);
    EXPECT_TRUE(out.whole.starts_with("HTTP/1.1 503 ")) << out.whole;
    EXPECT_NE(out.whole.find(sentence), std::string::npos) << out.whole;
  }
}

TEST(EngineFailure, AnEngineThatWorksGivesItsAnswers) {  // the control
  const Outcomes out = served_with(Fault::none);
  EXPECT_EQ(out.end, "");
  EXPECT_TRUE(out.whole.starts_with("HTTP/1.1 200 ")) << out.whole;
  EXPECT_EQ(out.stream.find("engine_failed"), std::string::npos);
}

}  // namespace
}  // namespace invar::server
