#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "base/error.h"
#include "ranks.h"

namespace invar {
namespace {

using namespace testing_ranks;

const Work kExchange = [](Group& group, int rank) { return reduce_and_gather(group, rank); };

// Sockets of every pair of ranks that exchange: fds[a][b] is a's end of its connection to b.
std::vector<std::vector<int>> connect_ranks(int size) {
  std::vector<std::vector<int>> fds(size, std::vector<int>(size, -1));
  for (int a = 0; a < size; ++a)
    for (const int b : socket_peers(a, size)) {
      if (b < a) continue;
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      fds[a][b] = ends[0];
      fds[b][a] = ends[1];
    }
  return fds;
}

void close_all(const std::vector<std::vector<int>>& fds) {
  for (const auto& row : fds)
    for (const int fd : row)
      if (fd >= 0) close(fd);
}

std::vector<std::vector<float>> over_sockets(int size, Work work) {
  const auto fds = connect_ranks(size);
  std::vector<std::unique_ptr<Group>> groups;
  for (int r = 0; r < size; ++r) groups.push_back(make_socket_group(r, fds[r]));
  auto results = on_threads(std::move(groups), work);
  close_all(fds);
  return results;
}

TEST(SocketGroup, GivesTheBitsOfRanksInOneProcess) {
  for (const int size : {1, 2, 4, 8, 16}) {
    const auto expected = on_threads(make_inproc_groups(size), kExchange);
    const auto found = over_sockets(size, kExchange);
    for (int r = 0; r < size; ++r)
      EXPECT_EQ(std::memcmp(found[r].data(), expected[0].data(), found[r].size() * sizeof(float)),
                0)
          << size << " ranks, rank " << r;
  }
}

// The control: a chain over the ranks is another sum.
TEST(SocketGroup, AnotherOrderGivesOtherBits) {
  const auto found = over_sockets(8, kExchange);
  std::vector<float> chain(1001);
  for (int r = 0; r < 8; ++r) {
    const auto values = operand(r, 1001);
    for (size_t i = 0; i < chain.size(); ++i) chain[i] = chain[i] + values[i];
  }
  EXPECT_NE(std::memcmp(found[0].data(), chain.data(), chain.size() * sizeof(float)), 0);
}

TEST(SocketGroup, ReachesAnotherProcess) {
  const auto fds = connect_ranks(2);
  const pid_t child = fork();
  if (child == 0) {
    close(fds[0][1]);
    const auto group = make_socket_group(1, fds[1]);
    reduce_and_gather(*group, 1);
    _exit(0);
  }
  close(fds[1][0]);
  const auto found = reduce_and_gather(*make_socket_group(0, fds[0]), 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const auto expected = on_threads(make_inproc_groups(2), kExchange);
  EXPECT_EQ(std::memcmp(found.data(), expected[0].data(), found.size() * sizeof(float)), 0);
  close(fds[0][1]);
}

TEST(SocketGroup, SaysThatAPeerHasGone) {
  const auto fds = connect_ranks(2);
  close(fds[1][0]);
  const auto group = make_socket_group(0, fds[0]);
  float x = 1;
  EXPECT_THROW(group->tree_all_reduce(&x, 1, {}), Error);
  close(fds[0][1]);
}

// A rank that fails leaves, whichever it is, and those that hear of it fail and leave too.
TEST(SocketGroup, OneThatLeavesEndsTheWaitOfAll) {
  for (const int size : {2, 4, 8})
    for (int leaver = 0; leaver < size; ++leaver) {
      const auto failed = over_sockets(size, [&](Group& group, int rank) -> std::vector<float> {
        group.barrier();
        try {
          if (rank == leaver) throw Error("a device");
          group.barrier();
        } catch (const Error&) {
          group.leave();
          return {1};
        }
        return {0};
      });
      for (int rank = 0; rank < size; ++rank)
        EXPECT_EQ(failed[rank], std::vector<float>{1}) << size << " ranks, " << leaver << " left";
    }
}

TEST(InprocGroup, OneThatLeavesEndsTheWaitOfAll) {
  for (const int size : {2, 4, 8})
    for (int leaver = 0; leaver < size; ++leaver) {
      const auto ended = on_threads(make_inproc_groups(size), [&](Group& group, int rank) {
        group.barrier();
        try {
          if (rank == leaver) throw Error("a device");
          reduce_and_gather(group, rank);
        } catch (const Error&) {
          group.leave();
          return std::vector<float>{1};
        }
        return std::vector<float>{0};
      });
      for (int rank = 0; rank < size; ++rank)
        EXPECT_EQ(ended[rank], std::vector<float>{1}) << size << " ranks, " << leaver << " left";
    }
}

}  // namespace
}  // namespace invar
