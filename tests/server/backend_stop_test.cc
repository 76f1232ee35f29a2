// A server ends before its backend, and may do so while the backend computes what was cancelled:
// its part that listens hears nothing after that.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "fake_engine.h"
#include "server/api.h"
#include "server/engine_process.h"
#include "server/inproc_backend.h"
#include "server/replicas.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::server {
namespace {

using std::chrono::milliseconds;

const Tokenizer& tokenizer() {
  static const Tokenizer made = Tokenizer::from_texts(make_tokenizer(512, 1).texts, "made");
  return made;
}

class Counter final : public BackendSink {
 public:
  void on_token(const TokenOutput&) override { ++heard; }
  void on_step_end() override {
    ++heard;
    std::this_thread::sleep_for(milliseconds(1));  // so that the answer goes on for seconds
  }
  void on_failure(const std::string&) override { ++heard; }

  void wait_for_more() const {
    const int64_t before = heard;
    for (int i = 0; i < 10'000 && heard < before + 8; ++i)
      std::this_thread::sleep_for(milliseconds(1));
    ASSERT_GE(heard, before + 8);
  }

  std::atomic<int64_t> heard = 0;
};

void expect_silence_after_stop(Backend& backend) {
  Counter sink;
  backend.start(sink);
  Request request{.id = 1, .prompt = {1, 2, 3}};
  request.params.max_tokens = 4000;
  backend.submit(std::move(request));
  sink.wait_for_more();
  sink.wait_for_more();  // the control: there is more to hear
  backend.stop();
  const int64_t heard = sink.heard;
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(sink.heard, heard);
  backend.stop();  // again, as its end does
}

TEST(BackendStop, AnEngineOfThisProcessIsSilentInTheMiddleOfAnAnswer) {
  InstanceOptions options{.model = {.model = "tiny", .load_format = "dummy:7", .threads = 1}};
  options.engine.kv_bytes = 64 << 20;
  options.engine.scheduler.max_model_len = 4096;
  Instance instance(options);
  InprocReplicas replicas(instance, tokenizer());
  expect_silence_after_stop(replicas);
}

TEST(BackendStop, AnEngineOfAnotherProcessIsSilentInTheMiddleOfAnAnswer) {
  EngineProcess engine({FAKE_ENGINE, "steady"}, tokenizer());
  expect_silence_after_stop(engine);
  EXPECT_EQ(engine.process(), 0);
}

// Notes whether it was told to stop.
class Stoppable final : public Backend {
 public:
  void start(BackendSink&) override {}
  void stop() override { stopped = true; }
  BackendFacts facts() const override { return {.identity = "none", .vocab = 512}; }
  BackendStats stats() const override { return {}; }
  void submit(Request) override {}
  void cancel(int64_t) override {}

  bool stopped = false;
};

TEST(BackendStop, AServerThatEndsStopsItsBackend) {
  Stoppable backend;
  const ServedModel served{.names = {"m"}, .tokenizer = &tokenizer()};
  ServerOptions options;
  options.http.host = "127.0.0.1";
  options.http.port = 0;
  {
    const Server server(options, served, backend, nullptr);
    EXPECT_FALSE(backend.stopped);
  }
  EXPECT_TRUE(backend.stopped);
}

}  // namespace
}  // namespace invar::server
