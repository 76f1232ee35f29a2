// Requests about a trainer's weights to a server that takes none from a GPU. One that does is
// tried by tests/server/nccl_weights_test.py.
#include "server/transfers.h"

#include <gtest/gtest.h>

namespace invar::server {
namespace {

json::Value parsed(const char* text) {
  return json::parse(text, "a test");
}

TEST(Transfers, WithoutAReceiverWhatNeedsOneIsRefused) {
  Transfers transfers(nullptr, [](const std::function<void()>& task) { task(); });
  EXPECT_FALSE(transfers.is_on());
  const Transfers::Done never = [](const auto&, const auto&) { FAIL(); };
  EXPECT_THROW(transfers.join(parsed(R"({"master_address": "x", "master_port": 1})"), never),
               ApiError);
  EXPECT_THROW(
      transfers.receive(parsed(R"({"names": [], "dtype_names": [], "shapes": []})"), true, never),
      ApiError);
  EXPECT_FALSE(transfers.is_busy());
  bool has_left = false;
  transfers.leave([&](const auto& wrong, const auto&) { has_left = !wrong; });
  EXPECT_TRUE(has_left);
  transfers.stop();
}

}  // namespace
}  // namespace invar::server
