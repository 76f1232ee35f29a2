// A room for models: which of several are loaded.
#include "server/model_room.h"

#include <gtest/gtest.h>

#include <random>

namespace invar::server {
namespace {

using Kind = ModelRoom::Step::Kind;
using State = ModelRoom::State;

// A room in which every step is done at once.
struct Done : ModelRoom {
  using ModelRoom::ModelRoom;
  void settle() {
    for (Step step = next(); step.kind != Kind::none; step = next())
      step.kind == Kind::load ? loaded(step.model) : unloaded(step.model);
  }
  void serve(size_t model) {
    ask(model);
    settle();
    ASSERT_TRUE(is_open(model));
    begin(model);
    end(model);
  }
  std::vector<size_t> all_loaded() const {
    std::vector<size_t> all;
    for (size_t i = 0; i < size(); ++i)
      if (state(i) == State::loaded) all.push_back(i);
    return all;
  }
};

TEST(ModelRoom, NothingIsLoadedBeforeItIsAskedFor) {
  ModelRoom room({1, 1}, {.bytes = 2, .models = 0});
  EXPECT_EQ(room.next().kind, Kind::none);
  EXPECT_EQ(room.last_used(), 2u);
}

TEST(ModelRoom, TheLeastRecentlyUsedOneMakesRoom) {
  Done room({1, 1, 1}, {.bytes = 2, .models = 0});
  for (const size_t model : {0, 1, 0, 2}) room.serve(model);
  EXPECT_EQ(room.all_loaded(), (std::vector<size_t>{0, 2}));
  EXPECT_EQ(room.last_used(), 2u);
}

TEST(ModelRoom, ALargeOneTakesThePlaceOfSeveral) {
  Done room({1, 1, 2}, {.bytes = 2, .models = 0});
  for (const size_t model : {0, 1, 2}) room.serve(model);
  EXPECT_EQ(room.all_loaded(), (std::vector<size_t>{2}));
}

TEST(ModelRoom, TheirNumberIsBoundedToo) {
  Done room({1, 1}, {.bytes = 100, .models = 1});
  for (const size_t model : {0, 1}) room.serve(model);
  EXPECT_EQ(room.all_loaded(), (std::vector<size_t>{1}));
}

TEST(ModelRoom, OneThatAnswersIsNotPutAway) {
  Done room({1, 1}, {.bytes = 1, .models = 0});
  room.ask(0);
  room.settle();
  room.begin(0);
  room.ask(1);
  room.settle();
  EXPECT_EQ(room.all_loaded(), (std::vector<size_t>{0}));
  EXPECT_FALSE(room.is_open(0));  // the longest wait comes first
  room.end(0);
  room.settle();
  EXPECT_EQ(room.all_loaded(), (std::vector<size_t>{1}));
}

TEST(ModelRoom, WhoeverWaitedForALoadIsAnsweredBeforeItGoes) {
  Done room({1, 1}, {.bytes = 1, .models = 0});
  room.ask(0);
  ASSERT_EQ(room.next().kind, Kind::load);
  room.ask(1);
  room.loaded(0);
  EXPECT_EQ(room.next().kind, Kind::none);
  EXPECT_TRUE(room.is_open(0));
  room.begin(0);
  EXPECT_FALSE(room.is_open(0));
  room.end(0);
  EXPECT_EQ(room.next().kind, Kind::put_away);
}

TEST(ModelRoom, OneStaysWhenNobodyWaitsForItsRoomAnyLonger) {
  Done room({1, 1}, {.bytes = 1, .models = 0});
  room.ask(0);
  room.settle();
  room.begin(0);
  room.ask(1);
  room.settle();
  room.leave(1);
  room.settle();
  EXPECT_TRUE(room.is_open(0));
}

TEST(ModelRoom, OneThatIsHeldIsNotPutAwayAndStaysOpen) {
  Done room({1, 1}, {.bytes = 1, .models = 0});
  room.serve(0);
  room.hold(0);
  room.ask(1);
  room.settle();
  EXPECT_TRUE(room.is_open(0));
  room.release(0);
  room.settle();
  EXPECT_EQ(room.all_loaded(), (std::vector<size_t>{1}));
}

TEST(ModelRoom, OneThatFailedIsLoadedAgainForWhoeverComesLater) {
  ModelRoom room({1}, {.bytes = 1, .models = 0});
  room.ask(0);
  ASSERT_EQ(room.next().kind, Kind::load);
  room.failed(0);
  EXPECT_EQ(room.next().kind, Kind::none);
  room.ask(0);
  room.leave(0);  // the one that was told
  EXPECT_EQ(room.next().kind, Kind::load);
}

// Every order of requests keeps the bounds, and everybody is answered.
TEST(ModelRoom, BoundsHoldAndNobodyStarves) {
  std::mt19937 random(7);
  const std::vector<int64_t> bytes = {1, 2, 3, 4, 2};
  Done room(bytes, {.bytes = 5, .models = 3});
  std::vector<std::pair<size_t, int>> waiting;  // and since when
  std::vector<size_t> answered;
  int longest = 0;
  for (int time = 0; time < 20000; ++time) {
    if (random() % 2) {
      waiting.emplace_back(random() % bytes.size(), time);
      room.ask(waiting.back().first);
    } else if (!answered.empty()) {
      const size_t one = random() % answered.size();
      room.end(answered[one]);
      answered.erase(answered.begin() + static_cast<std::ptrdiff_t>(one));
    }
    room.settle();
    EXPECT_LE(room.bytes_taken(), 5);
    EXPECT_LE(room.all_loaded().size(), 3u);
    for (const size_t model : answered) ASSERT_EQ(room.state(model), State::loaded);
    for (size_t i = 0; i < waiting.size();) {
      const auto [model, since] = waiting[i];
      if (!room.is_open(model)) {
        ++i;
        continue;
      }
      room.begin(model);
      answered.push_back(model);
      longest = std::max(longest, time - since);
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (answered.size() > 20) {  // as much as a server takes
      room.end(answered.front());
      answered.erase(answered.begin());
    }
  }
  EXPECT_LT(longest, 2000);
}

}  // namespace
}  // namespace invar::server
