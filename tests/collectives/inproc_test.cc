// The channel between the stages of one process: bytes come in their order, however far the sender
// is ahead.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "collectives/channel.h"
#include "collectives/group.h"

namespace invar {
namespace {

// A sender that stays ahead leaves something unread at any time, and what was read goes before the
// next piece is kept.
TEST(InprocChannel, BringsWhatIsSentAhead) {
  const auto channel = make_inproc_channel();
  std::vector<uint8_t> expected(400), found;
  std::iota(expected.begin(), expected.end(), uint8_t{0});
  for (size_t sent = 0; sent < expected.size(); sent += 20) {
    channel->send(expected.data() + sent, 20);
    const size_t most = sent == 0 ? 13 : 20;  // 7 bytes stay unread
    found.resize(found.size() + most);
    channel->receive(found.data() + found.size() - most, most);
  }
  found.resize(expected.size());
  channel->receive(found.data() + expected.size() - 7, 7);
  EXPECT_EQ(found, expected);
  channel->leave();
  EXPECT_THROW(channel->receive(found.data(), 1), PeerLeft);
}

}  // namespace
}  // namespace invar
