// Rests of streams: what a client has already is cut off, wherever the pieces end.
#include "server/relay.h"

#include <gtest/gtest.h>

#include <random>

namespace invar::server {
namespace {

std::string events(int from, int to) {
  std::string all;
  for (int i = from; i < to; ++i)
    all += "data: {\"n\": " + std::to_string(i) + ", \"t\": \"a\\nb\"}\n\n";
  return all;
}

TEST(EventSkipperTest, CutsWholeEventsOffWhereverPiecesEnd) {
  std::mt19937 random(1);
  const std::string all = events(0, 20);
  for (int skip = 0; skip <= 22; ++skip)
    for (int round = 0; round < 20; ++round) {
      EventSkipper skipper(skip);
      std::string out;
      for (size_t at = 0; at < all.size();) {
        const size_t size = 1 + random() % 40;
        skipper.push(std::string_view(all).substr(at, size), out);
        at += size;
      }
      EXPECT_EQ(out, events(std::min(skip, 20), 20));
    }
}

// A client, and a source that gives an event at each pull.
struct Client final : Exchange {
  void reply(HttpReply r) override { whole = std::move(r); }
  void stream(HttpReply, std::shared_ptr<BodySource> s) override { source = std::move(s); }
  void wake() override { over = !source->pull(got); }
  bool is_gone() const override { return false; }
  bool is_answered() const override { return whole || source; }
  std::optional<HttpReply> whole;
  std::shared_ptr<BodySource> source;
  std::string got;
  bool over = false;
};

struct Source final : BodySource {
  bool pull(std::string& out) override {
    out += events(next, next + 1);
    return ++next < 10;
  }
  int next = 0;
};

TEST(RelayTest, KeepsAStreamUntilItsClientComes) {
  for (int come = 0; come <= 10; ++come)
    for (const int64_t skip : {0, 1, 3, 10}) {
      const auto relay = Relay::make();
      const auto client = std::make_shared<Client>();
      if (come == 0) relay->connect(client, skip);
      relay->stream({}, std::make_shared<Source>());  // the first event, without a client
      for (int i = 1; i < 12; ++i) {
        if (come == i) relay->connect(client, skip);
        if (come > i || !client->over) relay->wake();
      }
      EXPECT_EQ(client->got, events(static_cast<int>(skip), 10)) << come << " " << skip;
      EXPECT_TRUE(client->over);
    }
}

TEST(RelayTest, OfAKeptStreamClientsComeAndGo) {
  const auto relay = Relay::make_kept();
  bool told = false;
  relay->on_gone = [&] { told = true; };
  const auto first = std::make_shared<Client>(), second = std::make_shared<Client>();
  relay->connect(first, 0);
  relay->stream({}, std::make_shared<Source>());
  for (int i = 0; i < 4; ++i) relay->wake();
  const std::string had = first->got;
  EXPECT_FALSE(had.empty());
  first->on_gone();
  EXPECT_FALSE(told);
  relay->connect(second, 2);
  for (int i = 0; i < 12; ++i) relay->wake();
  EXPECT_EQ(first->got, had);
  EXPECT_EQ(second->got, events(2, 10));
  const auto late = std::make_shared<Client>();
  relay->connect(late, 9);
  late->wake();
  EXPECT_EQ(late->got, events(9, 10));
}

TEST(RelayTest, KeepsAReplyAndTellsWhenTheClientHasGone) {
  const auto relay = Relay::make();
  bool told = false;
  relay->on_gone = [&] { told = true; };
  relay->reply({.status = 201});
  const auto client = std::make_shared<Client>();
  relay->connect(client, 0);
  EXPECT_EQ(client->whole->status, 201);
  client->on_gone();
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace invar::server
