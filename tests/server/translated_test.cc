// An answer in another form than the endpoint's that made it.
#include "server/translated.h"

#include <gtest/gtest.h>

#include "fake_exchange.h"

namespace invar::server {
namespace {

struct Case {
  explicit Case(bool events = false) {
    client->request.path = "/generate";
    client->request.body = "asked";
    inner = Translated::make(
        client, "/v1/completions", "{}",
        {.answer =
             [](const json::Value& answer) {
               return json::Value(json::Object{{"text", *answer.find("choice")}});
             },
         .event = events ? Translated::Back([](const json::Value& event) {
           return json::Value(json::Object{{"part", *event.find("choice")}});
         })
                         : nullptr},
        {.pool = [this](size_t, std::function<void()> task) { pool.push_back(std::move(task)); },
         .serving = [this](std::function<void()> task) { serving.push_back(std::move(task)); }});
  }
  void run() {
    for (const auto& task : std::exchange(pool, {})) task();
    for (const auto& task : std::exchange(serving, {})) task();
  }
  std::vector<std::function<void()>> pool, serving;  // before `inner`, which posts as it goes
  std::shared_ptr<FakeExchange> client = std::make_shared<FakeExchange>();
  std::shared_ptr<Translated> inner;
};

TEST(Translated, TheRequestIsTheOtherEndpointsAndTheClientsBodyIsGone) {
  const Case c;
  EXPECT_EQ(c.inner->request.path, "/v1/completions");
  EXPECT_EQ(c.inner->request.body, "{}");
  EXPECT_TRUE(c.client->request.body.empty());
}

TEST(Translated, TheRoomOfTheBodyIsGivenBackOnTheServingThread) {
  std::vector<std::function<void()>> posted;
  const auto client = std::make_shared<FakeExchange>();
  const auto place = std::make_shared<int>(0);
  client->body_place = place;
  auto inner = Translated::make(
      client, "/v1/completions", "{}", {.answer = [](const json::Value& answer) { return answer; }},
      {.pool = nullptr,
       .serving = [&](std::function<void()> task) { posted.push_back(std::move(task)); }});
  inner = nullptr;  // as a task of the pool lets go of it
  EXPECT_EQ(place.use_count(), 2) << "it was given back where the exchange went";
  EXPECT_EQ(posted.size(), 1u);
  posted.clear();
  EXPECT_EQ(place.use_count(), 1);
}

TEST(Translated, AGoodAnswerIsTranslatedAndAnErrorIsNot) {
  Case good, bad;
  good.inner->more_headers = {{"x", "y"}};
  good.inner->reply({.body = R"({"choice": "word"})"});
  EXPECT_TRUE(good.inner->is_answered());
  EXPECT_TRUE(good.client->replies.empty()) << "it was translated on the serving thread";
  good.inner->reply({.status = 504});  // its deadline, meanwhile
  good.run();
  ASSERT_EQ(good.client->replies.size(), 1u);
  EXPECT_EQ(good.client->replies[0].body, R"({"text": "word"})");
  EXPECT_EQ(good.client->more_headers, (Headers{{"x", "y"}}));
  bad.inner->reply({.status = 400, .body = R"({"choice": "word"})"});
  EXPECT_TRUE(bad.pool.empty());
  EXPECT_EQ(bad.client->replies[0].body, R"({"choice": "word"})");
}

TEST(Translated, WhatCannotBeTranslatedIsAnError) {
  Case c;
  c.inner->reply({.body = "no json"});
  c.run();
  EXPECT_EQ(c.client->replies[0].status, 500);
}

// A stream whose events come in any pieces.
struct Pieces final : BodySource {
  explicit Pieces(std::string text, size_t size) : text(std::move(text)), size(size) {}
  bool pull(std::string& out) override {
    out += text.substr(0, size);
    text.erase(0, size);
    return !text.empty();
  }
  std::string text;
  size_t size;
};

TEST(Translated, TheEventsOfAStreamAreTranslatedHoweverTheyAreCut) {
  const std::string stream =
      "data: {\"choice\": 1}\n\n: nothing to say\n\ndata: {\"choice\": 2}\n\ndata: [DONE]\n\n";
  for (size_t size = 1; size < stream.size(); ++size) {
    Case c(true);
    c.inner->more_headers = {{"x", "y"}};
    c.inner->stream({.type = "text/event-stream"}, std::make_shared<Pieces>(stream, size));
    ASSERT_EQ(c.client->replies.size(), 1u);
    EXPECT_EQ(c.client->replies[0].body,
              "data: {\"part\": 1}\n\n: nothing to say\n\ndata: {\"part\": 2}\n\ndata: [DONE]\n\n");
    EXPECT_EQ(c.client->more_headers.size(), 1u);
  }
  for (const bool events : {false, true}) {  // a long answer that is no stream of events
    Case whole(events);
    whole.inner->stream({}, std::make_shared<Pieces>("{\"choice\": 3}", 4));
    whole.run();
    EXPECT_EQ(whole.client->replies.at(0).body, "{\"text\": 3}");
  }
}

TEST(Translated, AClientThatGoesIsHeardWhileTheRequestLives) {
  Case c;
  int gone = 0;
  c.inner->on_gone = [&] { ++gone; };
  c.client->on_gone();
  c.inner = nullptr;
  c.client->on_gone();
  EXPECT_EQ(gone, 1);
}

TEST(Translated, ADeadlineIsTheRequestsOwnOrAnError) {
  Case own, other;
  int late = 0;
  own.inner->on_deadline = [&] { ++late; };
  own.client->on_deadline();
  EXPECT_EQ(late, 1);
  EXPECT_TRUE(own.client->replies.empty());
  other.client->on_deadline();
  ASSERT_EQ(other.client->replies.size(), 1u);
  EXPECT_EQ(other.client->replies[0].status, 504);
}

}  // namespace
}  // namespace invar::server
