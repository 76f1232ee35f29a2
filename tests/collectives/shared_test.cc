// Ranks in shared memory: the bits of the tree, whatever the size; who leaves, dies or stops ends
// the wait of all.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "collectives/channel.h"
#include "ranks.h"

namespace invar {
namespace {

using namespace testing_ranks;

std::vector<std::vector<float>> in_shared_memory(int size, Work work, int spins = 100) {
  SharedMemory memory(shared_group_bytes(size));
  std::vector<std::unique_ptr<Group>> groups;
  for (int r = 0; r < size; ++r)
    groups.push_back(make_shared_group({.rank = r, .size = size, .spins = spins}, memory));
  return on_threads(std::move(groups), work);
}

bool are_same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One row, a few, both sides of the step to two shots, several pieces and a rest.
TEST(SharedGroup, GivesTheBitsOfRanksInOneProcess) {
  for (const int size : {2, 4, 8, 16})
    for (const int64_t count : {int64_t{1}, int64_t{1001}, int64_t{4096}, int64_t{150'001}}) {
      const Work work = [count](Group& group, int rank) {
        return reduce_and_gather(group, rank, count);
      };
      const auto expected = on_threads(make_inproc_groups(size), work);
      const auto found = in_shared_memory(size, work, count % 2 ? 100 : 0);
      for (int r = 0; r < size; ++r)
        EXPECT_TRUE(are_same(found[r], expected[0])) << size << " ranks, rank " << r;
    }
}

TEST(SharedGroup, ThreadsOfARankShareTheWork) {
  const Work work = [](Group& group, int rank) {
    ThreadPool pool(2);
    std::vector<float> data = operand(rank, 100'003);
    group.tree_all_reduce(data.data(), std::ssize(data), {.pool = &pool});
    return data;
  };
  const auto expected = on_threads(make_inproc_groups(4), work);
  for (const auto& found : in_shared_memory(4, work)) EXPECT_TRUE(are_same(found, expected[0]));
}

// The control: a chain over the ranks is another sum.
TEST(SharedGroup, AnotherOrderGivesOtherBits) {
  const auto found =
      in_shared_memory(4, [](Group& group, int rank) { return reduce_and_gather(group, rank); });
  std::vector<float> chain(1001);
  for (int r = 0; r < 4; ++r) {
    const auto values = operand(r, 1001);
    for (size_t i = 0; i < chain.size(); ++i) chain[i] = chain[i] + values[i];
  }
  EXPECT_FALSE(are_same({found[0].begin(), found[0].begin() + 1001}, chain));
}

// Pieces of any length, in turns, more of them than the ring holds.
TEST(SharedChannel, BringsWhatIsSent) {
  SharedMemory memory(shared_channel_bytes());
  const auto from = make_shared_channel(memory, {}), to = make_shared_channel(memory, {});
  const auto lengths = {1, 0, 4096, 3'000'001, 7, 1 << 20, 262'144};
  std::thread sender([&] {
    for (const int n : lengths) from->send(operand(n, n).data(), sizeof(float) * n);
  });
  for (const int n : lengths) {
    std::vector<float> found(n);
    to->receive(found.data(), sizeof(float) * n);
    EXPECT_TRUE(are_same(found, operand(n, n))) << n;
  }
  sender.join();
  from->send("last", 4);
  from->leave();
  char last[4], none;
  to->receive(last, 4);
  EXPECT_EQ(std::string_view(last, 4), "last");
  EXPECT_THROW(to->receive(&none, 1), PeerLeft);
}

// Longer messages without a copy, short ones behind each: more of them than the ring holds, and
// each stays until its event is done.
TEST(SharedChannel, BringsWhatIsPlaced) {
  SharedMemory memory(shared_channel_bytes(true));
  const auto from = make_shared_channel(memory, {}), to = make_shared_channel(memory, {});
  EXPECT_FALSE(from->has_place_for(64 << 20));
  EXPECT_FALSE(make_inproc_channel()->has_place_for(4096));
  const auto device = make_host_device();
  std::vector<int> lengths;
  for (int i = 0; i < 40; ++i) lengths.push_back(i % 3 == 0 ? 4'000'000 : 1 + 70'001 * i);
  std::thread sender([&] {
    for (const int n : lengths) {
      ASSERT_TRUE(from->has_place_for(sizeof(float) * n));
      std::memcpy(from->place(sizeof(float) * n), operand(n, n).data(), sizeof(float) * n);
      from->send_placed();
      from->send(&n, sizeof n);
    }
  });
  for (const int n : lengths) {
    to->release();
    const std::byte* placed = to->receive_placed(sizeof(float) * n, device->make_event());
    int behind = 0;
    to->receive(&behind, sizeof behind);
    EXPECT_EQ(behind, n);
    const auto expected = operand(n, n);
    EXPECT_EQ(std::memcmp(placed, expected.data(), sizeof(float) * n), 0) << n;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(placed) % 4096, 0);
  }
  sender.join();
}

// The control: what is released too early is written over by the one behind.
TEST(SharedChannel, WhatIsPlacedStaysUntilItIsReleased) {
  SharedMemory memory(shared_channel_bytes(true));
  const auto from = make_shared_channel(memory, {}), to = make_shared_channel(memory, {});
  const auto device = make_host_device();
  constexpr size_t kBytes = 16 << 20;
  const auto changes = [&](bool is_released) {
    std::memset(from->place(kBytes), 1, kBytes);
    from->send_placed();
    const std::byte* first = to->receive_placed(kBytes, device->make_event());
    if (is_released) to->release();
    std::atomic<int> sent = 0;
    const std::jthread sender([&] {
      for (int i = 0; i < 4; ++i, ++sent) {
        std::memset(from->place(kBytes), 2, kBytes);
        from->send_placed();
      }
    });
    while (sent < (is_released ? 4 : 3)) std::this_thread::yield();
    const bool has_changed = first[0] != std::byte{1};
    for (int i = 0; i < 4; ++i) {
      to->release();
      to->receive_placed(kBytes, device->make_event());
    }
    to->release();
    return has_changed;
  };
  EXPECT_FALSE(changes(false));
  EXPECT_TRUE(changes(true));
}

TEST(SharedGroup, OneThatLeavesEndsTheWaitOfAll) {
  for (const int size : {2, 4, 8})
    for (int leaver = 0; leaver < size; ++leaver) {
      const auto failed = in_shared_memory(size, [&](Group& group, int rank) {
        group.barrier();
        try {
          if (rank == leaver) throw Error("a device");
          reduce_and_gather(group, rank);
        } catch (const Error& error) {
          group.leave();
          const auto said = fmt::format("rank {} has left its group", leaver);
          return std::vector<float>{rank == leaver || error.what() == said ? 1.0f : 2.0f};
        }
        return std::vector<float>{0};
      });
      for (int rank = 0; rank < size; ++rank)
        EXPECT_EQ(failed[rank], std::vector<float>{1}) << size << " ranks, " << leaver << " left";
    }
}

// A process that is killed while others wait: who sees it says so, and all hear of it at once.
TEST(SharedGroup, OneThatDiesEndsTheWaitOfAll) {
  SharedMemory memory(shared_group_bytes(4));
  const pid_t child = fork();
  if (child == 0) {
    const auto group = make_shared_group({.rank = 3, .size = 4}, memory);
    group->barrier();
    pause();
  }
  std::vector<std::unique_ptr<Group>> groups;
  const Trouble dead = [child] {
    return ::waitpid(child, nullptr, WNOHANG) != 0 ? "rank 3 has ended" : "";
  };
  for (int r = 0; r < 3; ++r)
    groups.push_back(
        make_shared_group({.rank = r, .size = 4, .trouble = r == 1 ? dead : Trouble()}, memory));
  const auto failed = on_threads(std::move(groups), [&](Group& group, int rank) {
    group.barrier();
    if (rank == 1) ::kill(child, SIGKILL);
    try {
      group.barrier();
    } catch (const PeerLeft&) {
      return std::vector<float>{1};
    }
    return std::vector<float>{0};
  });
  for (const auto& one : failed) EXPECT_EQ(one, std::vector<float>{1});
}

}  // namespace
}  // namespace invar
