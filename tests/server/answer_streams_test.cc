// An answer that cannot be written fails alone: the others of the same step go on.
#include "server/answer_streams.h"

#include <gtest/gtest.h>

#include "fake_exchange.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::server {
namespace {

struct IdleBackend final : Backend {
  void start(BackendSink&) override {}
  void stop() override {}
  BackendFacts facts() const override { return {}; }
  BackendStats stats() const override { return {}; }
  void submit(Request) override {}
  void cancel(int64_t) override {}
};

// Keeps the source, as a connection does.
struct StreamingExchange final : Exchange {
  void reply(HttpReply one) override { whole = std::move(one); }
  void stream(HttpReply, std::shared_ptr<BodySource> one) override { source = std::move(one); }
  void wake() override {
    if (source && !source->pull(sent)) source = nullptr;
  }
  bool is_gone() const override { return false; }
  bool is_answered() const override { return whole || source; }

  std::optional<HttpReply> whole;
  std::shared_ptr<BodySource> source;
  std::string sent;
};

struct Case {
  // Answers of one token; the receipt of a bad one throws.
  std::shared_ptr<StreamingExchange> add(bool streams_it, bool bad) {
    const auto exchange = std::make_shared<StreamingExchange>();
    Admitted admitted;
    admitted.entry.id = bad ? "bad" : "good";
    admitted.entry.endpoint = "/v1/completions";
    admitted.entry.prompts.emplace_back(std::vector<int32_t>{1});
    admitted.request.prompts.emplace_back(std::vector<int32_t>{1});
    admitted.request.stream = streams_it;
    admitted.request.receipt = true;
    admitted.request.make_receipt = [bad](const TextAnswer&, size_t) -> json::Value {
      if (bad) throw std::out_of_range("a position that is not there");
      return json::Object{};
    };
    admitted.requests.resize(1);
    streams.number(admitted.requests);
    ids.push_back(admitted.requests[0].id);
    const auto stream =
        std::make_shared<AnswerStream>(std::move(admitted), exchange, tokenizer, streams);
    streams.add(stream);
    stream->begin();
    return exchange;
  }
  void compute_all() {
    for (const int64_t id : ids)
      streams.on_token({.request = id, .token = 5, .finish = FinishReason::length});
    streams.on_step_end();
    for (const auto& task : std::exchange(posted, {})) task();
  }

  const Tokenizer tokenizer = Tokenizer::from_texts(make_tokenizer(512, 1).texts, "made");
  IdleBackend backend;
  std::vector<std::function<void()>> posted;
  std::map<std::string, Outcome> ended;
  std::vector<int64_t> ids;
  AnswerStreams streams{backend,
                        [this](std::function<void()> task) { posted.push_back(std::move(task)); },
                        [this](const AnswerStream& stream, Outcome outcome) {
                          ended[stream.admitted().entry.id] = outcome;
                        }};
};

TEST(AnswerStreams, AWholeAnswerThatCannotBeWrittenFailsAlone) {
  Case c;
  const auto bad = c.add(false, true), good = c.add(false, false);
  c.compute_all();
  ASSERT_TRUE(bad->whole && good->whole);
  EXPECT_EQ(bad->whole->status, 500);
  EXPECT_NE(bad->whole->body.find("a position that is not there"), std::string::npos);
  EXPECT_EQ(good->whole->status, 200);
  EXPECT_EQ(c.ended, (std::map<std::string, Outcome>{{"bad", Outcome::failed},
                                                     {"good", Outcome::finished}}));
  EXPECT_EQ(c.streams.size(), 0u);
}

TEST(AnswerStreams, AStreamThatCannotBeWrittenEndsWithAnErrorAlone) {
  Case c;
  const auto bad = c.add(true, true), good = c.add(true, false);
  c.compute_all();
  EXPECT_NE(bad->sent.find("data: {\"error\""), std::string::npos) << bad->sent;
  EXPECT_EQ(bad->sent.find("choices"), std::string::npos) << "half an event: " << bad->sent;
  EXPECT_NE(good->sent.find("[DONE]"), std::string::npos) << good->sent;
  EXPECT_EQ(c.ended, (std::map<std::string, Outcome>{{"bad", Outcome::failed},
                                                     {"good", Outcome::finished}}));
  EXPECT_EQ(c.streams.size(), 0u);
}

// Its next text is refused while the vector of another one is taken.
TEST(AnswerStreams, AnEmbeddingThatIsGivenUpWithinAVectorIsForgottenOnce) {
  Case c;
  const auto embedding = std::make_shared<Embedding>(
      std::vector<Request>(2), nullptr, std::make_shared<StreamingExchange>(), nullptr, nullptr);
  c.streams.number(embedding->requests());
  c.streams.add(embedding);
  embedding->more = [&] { c.streams.cancel(*embedding); };
  std::vector<Outcome> ended;
  embedding->ended = [&](Outcome outcome) { ended.push_back(outcome); };
  EXPECT_EQ(c.streams.size(), 1u);
  c.streams.on_pooled(PooledOutput{.request = embedding->requests()[0].id, .numbers = {1}});
  c.compute_all();
  EXPECT_TRUE(embedding->is_over());
  EXPECT_EQ(c.streams.size(), 0u);
  EXPECT_EQ(ended, std::vector{Outcome::aborted});
}

}  // namespace
}  // namespace invar::server
