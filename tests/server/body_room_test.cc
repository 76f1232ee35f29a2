// Memory for bodies: who finds none waits for it, and the oldest is never refused.
#include "server/body_room.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>

namespace invar::server {
namespace {

using namespace std::chrono_literals;

class BodyRooms : public testing::Test {
 protected:
  // Asks for room; what was said stands in the result once the loop has run.
  std::shared_ptr<std::optional<bool>> grow(BodyRoom::Place& place, size_t bytes,
                                            std::chrono::milliseconds patience = 10s) {
    auto said = std::make_shared<std::optional<bool>>();
    boost::asio::co_spawn(
        loop_,
        [this, &place, bytes, patience, said]() -> boost::asio::awaitable<void> {
          *said = co_await room_.grow(*place, bytes, patience);
        },
        boost::asio::detached);
    poll();
    return said;
  }
  void poll() {
    loop_.restart();
    loop_.poll();
  }

  boost::asio::io_context loop_;
  BodyRoom room_{100};
};

TEST_F(BodyRooms, IsGivenAndGivenBack) {
  BodyRoom::Place first = room_.open(80), second = room_.open(80);
  EXPECT_EQ(*grow(first, 80), true);
  EXPECT_TRUE(first->has(80));
  const auto waits = grow(second, 60);
  EXPECT_EQ(*waits, std::nullopt);
  first = nullptr;
  poll();
  EXPECT_EQ(*waits, true);
  EXPECT_TRUE(second->has(60));
  EXPECT_FALSE(second->has(61));
}

// There is room for the younger one's next bytes, but then neither could ever be whole.
TEST_F(BodyRooms, KeepsEnoughForTheOldest) {
  BodyRoom::Place oldest = room_.open(100), younger = room_.open(100);
  EXPECT_EQ(*grow(oldest, 50), true);
  const auto waits = grow(younger, 10);
  EXPECT_EQ(*waits, std::nullopt);
  EXPECT_EQ(*grow(oldest, 100), true);
  oldest = nullptr;
  poll();
  EXPECT_EQ(*waits, true);
}

// The control: what asks for no more leaves the rest to others.
TEST_F(BodyRooms, WhatIsCompleteClaimsNoMore) {
  BodyRoom::Place oldest = room_.open(100), younger = room_.open(50);
  EXPECT_EQ(*grow(oldest, 50), true);
  const auto waits = grow(younger, 10);
  EXPECT_EQ(*waits, std::nullopt);
  oldest->complete();
  poll();
  EXPECT_EQ(*waits, true);
}

TEST_F(BodyRooms, PatienceEnds) {
  BodyRoom::Place first = room_.open(100), second = room_.open(100);
  EXPECT_EQ(*grow(first, 100), true);
  const auto waits = grow(second, 1, 20ms);
  loop_.restart();
  loop_.run_for(2s);
  EXPECT_EQ(*waits, false);
  EXPECT_FALSE(second->has(1));
}

}  // namespace
}  // namespace invar::server
