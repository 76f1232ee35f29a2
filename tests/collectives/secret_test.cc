// Groups and channels over connections between hosts, here over the loopback.
#include <gtest/gtest.h>

#include <cstring>
#include <future>

#include "base/secret_socket.h"
#include "collectives/channel.h"
#include "ranks.h"

namespace invar {
namespace {

using namespace testing_ranks;
using Sockets = std::vector<std::vector<std::shared_ptr<SecretSocket>>>;

const Work kExchange = [](Group& group, int rank) { return reduce_and_gather(group, rank); };

std::pair<std::shared_ptr<SecretSocket>, std::shared_ptr<SecretSocket>> connected() {
  SecretListener listener("127.0.0.1", 0, "secret");
  auto first = std::async(std::launch::async, [&] {
    return std::shared_ptr(connect_to("127.0.0.1", listener.port(), "secret", 5));
  });
  std::shared_ptr<SecretSocket> second = listener.accept(5);
  return {first.get(), std::move(second)};
}

// Of every pair of ranks that exchange.
std::vector<std::unique_ptr<Group>> groups_of(int size) {
  Sockets sockets(size, std::vector<std::shared_ptr<SecretSocket>>(size));
  for (int a = 0; a < size; ++a)
    for (const int b : socket_peers(a, size))
      if (a < b) std::tie(sockets[a][b], sockets[b][a]) = connected();
  std::vector<std::unique_ptr<Group>> groups;
  for (int rank = 0; rank < size; ++rank)
    groups.push_back(make_secret_group(rank, std::move(sockets[rank])));
  return groups;
}

TEST(SecretGroup, GivesTheBitsOfRanksInOneProcess) {
  for (const int size : {2, 4, 8}) {
    const auto expected = on_threads(make_inproc_groups(size), kExchange);
    const auto found = on_threads(groups_of(size), kExchange);
    for (int r = 0; r < size; ++r)
      EXPECT_EQ(std::memcmp(found[r].data(), expected[0].data(), found[r].size() * sizeof(float)),
                0)
          << size << " ranks, rank " << r;
  }
}

// The control: a chain over the ranks is another sum.
TEST(SecretGroup, AnotherOrderGivesOtherBits) {
  const auto found = on_threads(groups_of(8), kExchange);
  std::vector<float> chain(1001);
  for (int r = 0; r < 8; ++r) {
    const auto values = operand(r, 1001);
    for (size_t i = 0; i < chain.size(); ++i) chain[i] = chain[i] + values[i];
  }
  EXPECT_NE(std::memcmp(found[0].data(), chain.data(), chain.size() * sizeof(float)), 0);
}

TEST(SecretGroup, ARankThatLeavesIsNoticed) {
  const auto found = on_threads(groups_of(4), [](Group& group, int rank) {
    std::vector<float> data(8), noticed;
    if (rank == 2) {
      group.leave();
      return noticed;
    }
    try {
      for (int i = 0; i < 1000; ++i) group.tree_all_reduce(data.data(), 8, {});
    } catch (const PeerLeft&) {
      group.leave();
      noticed = {1};
    }
    return noticed;
  });
  for (const int rank : {0, 1, 3}) EXPECT_EQ(found[rank].size(), 1u) << rank;
}

TEST(SecretChannel, CarriesWhatAStageSends) {
  auto [first, second] = connected();
  const auto before = make_secret_channel(first), after = make_secret_channel(second);
  const std::vector<float> hidden = operand(1, 5000);
  auto sending = std::async(std::launch::async,
                            [&] { before->send(hidden.data(), hidden.size() * sizeof(float)); });
  std::vector<float> found(hidden.size());
  after->receive(found.data(), found.size() * sizeof(float));
  sending.get();
  EXPECT_EQ(found, hidden);
  before->leave();
  EXPECT_THROW(after->receive(found.data(), 4), PeerLeft);
}

}  // namespace
}  // namespace invar
