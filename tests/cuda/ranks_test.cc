// Ranks on GPUs against ranks of the host, bit by bit: by kernels that wait for each other, where
// there are several GPUs on all of them, and by ranks that meet at the host. A rank that leaves or
// does not come ends the wait of all.
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <sstream>
#include <thread>

#include "../collectives/ranks.h"
#include "base/child_process.h"
#include "base/thread_pool.h"
#include "base/timer.h"
#include "collectives/peer_group.h"
#include "device/cuda_device.h"

namespace invar {
namespace {

using testing_ranks::on_threads;
using testing_ranks::operand;
using testing_ranks::Work;
using Way = PeerOptions::Way;

// Sums that depend on the order, that are flushed, and that are no numbers.
std::vector<float> values_of(int rank, int64_t count, int round = 0) {
  std::vector<float> values = operand(rank + 16 * round, count);
  for (int64_t i = rank; i < count; i += 97) values[i] = std::ldexp(1.5f, -126 - rank % 3);
  for (int64_t i = 5 + rank; i < count; i += 1009) values[i] = -values[i];
  if (count > 300) values[300] = rank == 1 ? std::nanf("") : 1;
  if (count > 301) values[301] = -0.0f;
  return values;
}

bool are_same(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i])))
      return false;
  return true;
}

// A rank's place: its GPU and its stream.
struct Place {
  Device* device;
  std::unique_ptr<Stream> stream;
  Execution on() const { return {device, stream.get()}; }
};

class RanksOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    // As the engine does: a kernel that is loaded when it is first launched would wait for those
    // that wait for it.
    ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    const char* required = std::getenv("INVAR_REQUIRE");
    const bool is_required = required && std::string(required).find("cuda") != std::string::npos;
    if (!is_required && cuda_device_count() == 0)
      GTEST_SKIP() << "NOT RUN: this machine has no GPU";
    ASSERT_GT(cuda_device_count(), 0);
  }

  // Rank r has GPU r modulo their number.
  std::vector<std::unique_ptr<Group>> groups(int size, PeerOptions options) {
    if (devices_.empty())
      for (int i = 0; i < cuda_device_count(); ++i) devices_.push_back(make_cuda_device(i));
    places_.clear();
    hosts_ = make_inproc_groups(size);
    std::vector<std::unique_ptr<Group>> groups;
    for (int r = 0; r < size; ++r) {
      Device& device = *devices_[static_cast<size_t>(r) % devices_.size()];
      places_.push_back({&device, device.make_stream()});
      groups.push_back(make_peer_group(*hosts_[r], options));
    }
    return groups;
  }
  Execution on(int rank) const { return places_[static_cast<size_t>(rank)].on(); }

  // An array of a rank's GPU.
  DeviceArray<float> array(int rank, const std::vector<float>& values) const {
    DeviceArray<float> made(*on(rank).device, values.size(), "a test");
    on(rank).device->upload(made.data(), values.data(), values.size() * sizeof(float));
    return made;
  }
  std::vector<float> download(int rank, const DeviceArray<float>& from) const {
    std::vector<float> values(from.size());
    on(rank).stream->wait();
    on(rank).device->download(values.data(), from.data(), values.size() * sizeof(float));
    return values;
  }

  std::vector<float> reduce_and_gather(Group& group, int rank, int64_t count) const {
    DeviceArray<float> data = array(rank, values_of(rank, count));
    const DeviceArray<float> mine = array(rank, operand(100 + rank, count)),
                             all = array(rank, std::vector<float>(count * group.size()));
    group.begin_step(on(rank));
    group.tree_all_reduce(data.data(), count, on(rank));
    group.all_gather(mine.data(), count * 4, all.data(), on(rank));
    group.tree_all_reduce(data.data(), count, on(rank));
    group.end_step(on(rank));
    std::vector<float> found = download(rank, data), pieces = download(rank, all);
    group.expect_whole();
    found.insert(found.end(), pieces.begin(), pieces.end());
    return found;
  }

  static std::vector<float> on_host(Group& group, int rank, int64_t count) {
    const ScopedFlushToZero flush;
    std::vector<float> data = values_of(rank, count), all(count * group.size());
    const std::vector<float> mine = operand(100 + rank, count);
    group.tree_all_reduce(data.data(), count, {});
    group.all_gather(mine.data(), count * 4, all.data(), {});
    group.tree_all_reduce(data.data(), count, {});
    data.insert(data.end(), all.begin(), all.end());
    return data;
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Group>> hosts_;
  std::vector<Place> places_;
};

// Numbers of floats that are few enough for kernels that share a GPU to run side by side.
constexpr int64_t kCounts[] = {4, 1000, 4096, 30'004};

TEST_F(RanksOnGpu, GiveTheBitsOfTheHostsTree) {
  for (const int size : {2, 4, 8})
    for (const int64_t count : kCounts) {
      const auto expected = on_threads(make_inproc_groups(size), [&](Group& group, int rank) {
        return on_host(group, rank, count);
      });
      for (const Way way : {Way::automatic, Way::host, Way::device})
        for (const int64_t one_shot : {int64_t{0}, int64_t{4} << 20}) {
          if (way == Way::device && size == 8 && cuda_device_count() < 8) continue;
          const auto found = on_threads(
              groups(size, {.way = way, .one_shot_bytes = one_shot}),
              [&](Group& group, int rank) { return reduce_and_gather(group, rank, count); });
          for (int r = 0; r < size; ++r)
            EXPECT_TRUE(are_same(found[r], expected[0]))
                << size << " ranks, rank " << r << ", " << count << " floats, way "
                << static_cast<int>(way) << ", one shot to " << one_shot;
        }
    }
}

// More than the threads of a launch; a number that the kernels do not move is the staged group's.
TEST_F(RanksOnGpu, LongAndOddOperandsGiveTheSame) {
  for (const int64_t count : {int64_t{1'500'000}, int64_t{1001}}) {
    const auto expected = on_threads(
        make_inproc_groups(2), [&](Group& group, int rank) { return on_host(group, rank, count); });
    for (const Way way : {Way::host, Way::device})
      for (const int64_t one_shot : {int64_t{0}, int64_t{8} << 20}) {
        // On one GPU a kernel that waits would leave no room for the one that it waits for.
        if (way == Way::device && cuda_device_count() < 2) continue;
        const auto found = on_threads(
            groups(2, {.way = way, .one_shot_bytes = one_shot}),
            [&](Group& group, int rank) { return reduce_and_gather(group, rank, count); });
        for (int r = 0; r < 2; ++r)
          EXPECT_TRUE(are_same(found[r], expected[0]))
              << count << " floats, rank " << r << ", way " << static_cast<int>(way);
      }
  }
}

// The control: a chain over the ranks is another sum.
TEST_F(RanksOnGpu, AnotherOrderGivesOtherBits) {
  const auto found = on_threads(groups(4, {}), [&](Group& group, int rank) {
    DeviceArray<float> data = array(rank, operand(rank, 4096));
    group.tree_all_reduce(data.data(), 4096, on(rank));
    return download(rank, data);
  });
  std::vector<float> chain(4096), tree(4096);
  const auto value = [](int rank) { return operand(rank, 4096); };
  const auto v0 = value(0), v1 = value(1), v2 = value(2), v3 = value(3);
  for (size_t i = 0; i < chain.size(); ++i) {
    chain[i] = ((v0[i] + v1[i]) + v2[i]) + v3[i];
    tree[i] = (v0[i] + v1[i]) + (v2[i] + v3[i]);
  }
  EXPECT_TRUE(are_same(found[0], tree));
  EXPECT_FALSE(are_same(found[0], chain));
}

// The chain of comparisons is the host's, and not the tree.
TEST_F(RanksOnGpu, AChainGivesTheBitsOfTheHostsChain) {
  for (const int64_t count : {int64_t{1001}, int64_t{30'004}, int64_t{5'000'000}}) {
    const auto expected = on_threads(make_inproc_groups(4), [&](Group& group, int rank) {
      std::vector<float> data = operand(rank, count);
      make_chain_group(group)->tree_all_reduce(data.data(), count, {});
      return data;
    });
    const auto sums = [&](bool is_chain) {
      return on_threads(groups(4, {.way = Way::host}), [&](Group& group, int rank) {
        const auto chain = make_chain_group(group);
        const DeviceArray<float> data = array(rank, operand(rank, count));
        (is_chain ? *chain : group).tree_all_reduce(data.data(), count, on(rank));
        return download(rank, data);
      });
    };
    const auto chain = sums(true), tree = sums(false);
    for (int r = 0; r < 4; ++r) {
      EXPECT_TRUE(are_same(chain[r], expected[r])) << count << " floats, rank " << r;
      EXPECT_FALSE(are_same(tree[r], expected[r]));
    }
  }
}

// A recorded step advances what tells one operation from the next.
TEST_F(RanksOnGpu, RecordedOperationsCanBeReplayed) {
  constexpr int64_t kCount = 8192;
  constexpr int kRounds = 6;
  const auto results = [&](Group& group, int rank, bool records) {
    std::vector<float> zeros(kCount), found;
    DeviceArray<float> small = array(rank, zeros), large = array(rank, zeros);
    const auto work = [&] {
      group.tree_all_reduce(small.data(), kCount / 8, on(rank));
      group.tree_all_reduce(large.data(), kCount, on(rank));
    };
    work();  // before, it is not known how the ranks meet
    std::unique_ptr<Graph> graph;
    on(rank).stream->wait();
    if (records) {
      EXPECT_TRUE(group.can_be_recorded());
      graph = on(rank).stream->record_graph(work);
    }
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<float> values = values_of(rank, kCount, round);
      on(rank).device->upload(small.data(), values.data(), kCount / 2);
      on(rank).device->upload(large.data(), values.data(), kCount * 4);
      group.barrier();  // an upload waits for the whole GPU
      records ? on(rank).stream->launch(*graph) : work();
      for (const auto* array : {&small, &large}) {
        const std::vector<float> sums = download(rank, *array);
        found.insert(found.end(), sums.begin(), sums.end());
      }
    }
    group.expect_whole();
    return found;
  };
  const PeerOptions options{.way = Way::device, .one_shot_bytes = 8192};
  const auto run = [&](bool records) {
    return on_threads(groups(2, options),
                      [&](Group& group, int rank) { return results(group, rank, records); });
  };
  const auto launched = run(false), recorded = run(true);
  const auto host = on_threads(make_inproc_groups(2), [&](Group& group, int rank) {
    const ScopedFlushToZero flush;
    std::vector<float> values = values_of(rank, kCount, kRounds - 1);
    group.tree_all_reduce(values.data(), kCount, {});
    return values;
  });
  for (int r = 0; r < 2; ++r) {
    EXPECT_TRUE(are_same(recorded[r], launched[r])) << "rank " << r;
    EXPECT_TRUE(are_same({recorded[r].end() - kCount, recorded[r].end()}, host[0])) << "rank " << r;
  }
}

// Seconds of 64 recorded sums of 4 MiB, of which rank 1 begins `late` seconds after rank 0.
double seconds_of_sums(std::vector<std::unique_ptr<Group>> groups, double late,
                       const std::function<Execution(int)>& on) {
  const auto seconds = on_threads(std::move(groups), [&](Group& group, int rank) {
    constexpr int64_t kCount = 1 << 20;
    DeviceArray<float> data(*on(rank).device, kCount, "a test");
    const auto work = [&] { group.tree_all_reduce(data.data(), kCount, on(rank)); };
    work();
    on(rank).stream->wait();
    const auto graph = on(rank).stream->record_graph([&] {
      for (int i = 0; i < 64; ++i) work();
    });
    group.barrier();
    const Timer timer;
    if (rank == 1) std::this_thread::sleep_for(std::chrono::duration<double>(late));
    on(rank).stream->launch(*graph);
    on(rank).stream->wait();
    group.expect_whole();
    return std::vector{static_cast<float>(timer.seconds())};
  });
  return seconds[0][0];
}

// Whoever waits long must see at once what has come then, or the others wait for it in turn, in
// every sum from there on. The foil asks at each turn whether a rank has left.
TEST_F(RanksOnGpu, ARankThatComesLateDelaysOneSum) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "NOT RUN: this machine has one GPU";
  constexpr double kLate = 0.002;
  const auto seconds = [&](double late, double asks_every) {
    return seconds_of_sums(groups(2, {.asks_every = asks_every}), late,
                           [&](int rank) { return on(rank); });
  };
  const PeerOptions options;
  const double together = seconds(0, options.asks_every);
  const double late = seconds(kLate, options.asks_every);
  EXPECT_LT(late, kLate + 2 * together + 0.002);
  EXPECT_GT(seconds(kLate, 0), 2 * late);
}

// Whether a rank whose neighbour does `instead` is told in good time.
double seconds_until_left(std::vector<std::unique_ptr<Group>> groups, const Work& waits) {
  const auto begin = std::chrono::steady_clock::now();
  on_threads(std::move(groups), waits);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST_F(RanksOnGpu, WhoLeavesOrDoesNotComeEndsTheWaitOfAll) {
  for (const bool leaves : {true, false}) {
    const PeerOptions options{.way = Way::device, .seconds = leaves ? 60.0 : 0.3};
    const double seconds = seconds_until_left(groups(2, options), [&](Group& group, int rank) {
      DeviceArray<float> data = array(rank, operand(rank, 4096));
      group.tree_all_reduce(data.data(), 4096, on(rank));
      on(rank).stream->wait();
      EXPECT_NO_THROW(group.expect_whole());
      if (rank == 1) {
        if (leaves) group.leave();
        return std::vector<float>();
      }
      for (int i = 0; i < 3; ++i) group.tree_all_reduce(data.data(), 4096, on(rank));
      on(rank).stream->wait();
      EXPECT_THROW(group.expect_whole(), PeerLeft);
      EXPECT_THROW(group.begin_step(on(rank)), PeerLeft);
      return std::vector<float>();
    });
    EXPECT_LT(seconds, 20);
  }
}

// ---- Ranks that are processes: this program again, for each

constexpr const char* kRank = "INVAR_TEST_RANK";  // "RANK SIZE FILE MODE" of such a process

struct Outcome {
  int exit = -1;
  double seconds = 0;
};

std::vector<Outcome> in_processes(int size, const char* mode) {
  const auto begin = std::chrono::steady_clock::now();
  SharedMemory memory(shared_group_bytes(size));
  const int files[] = {memory.file()};
  std::vector<pid_t> processes;
  for (int r = 0; r < size; ++r) {
    const std::string command[] = {
        "/usr/bin/env", fmt::format("{}={} {} {} {}", kRank, r, size, memory.file(), mode),
        std::filesystem::read_symlink("/proc/self/exe"), "--gtest_filter=RankProcess.*"};
    processes.push_back(start({command, files}));
  }
  std::vector<Outcome> outcomes;
  for (const pid_t process : processes) {
    int status = 0;
    ::waitpid(process, &status, 0);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    outcomes.push_back({WIFEXITED(status) ? WEXITSTATUS(status) : -1, seconds});
  }
  return outcomes;
}

TEST_F(RanksOnGpu, ProcessesGiveTheSame) {
  for (const int size : {2, 4})
    for (const Outcome& outcome : in_processes(size, "whole")) EXPECT_EQ(outcome.exit, 0) << size;
}

// One ends without a word between two operations.
TEST_F(RanksOnGpu, AProcessThatEndsIsMissed) {
  const auto outcomes = in_processes(2, "ends");
  EXPECT_EQ(outcomes[0].exit, 0);
  EXPECT_EQ(outcomes[1].exit, 7);
  EXPECT_LT(outcomes[0].seconds, 30);
}

class ProcessRank {
 public:
  explicit ProcessRank(const char* place) {
    std::istringstream(place) >> rank_ >> size_ >> file_ >> mode_;
    memory_ = SharedMemory::of_file(file_);
    device_ = make_cuda_device(rank_ % cuda_device_count());
    stream_ = device_->make_stream();
    const Trouble trouble = [this] { return look_at_others(); };
    host_ = make_shared_group({rank_, size_, 0, trouble}, memory_);
    group_ = make_peer_group(*host_, PeerProcesses{leaver_of(memory_), {}}, {.seconds = 2});
  }

  void run() {
    for (const int64_t count : {int64_t{4096}, int64_t{30'000}, int64_t{12'000'000}}) {
      expect_sum(count);
      if (mode_ == "ends" && rank_ == 1) std::_Exit(7);
      if (mode_ == "ends") {
        EXPECT_THROW(sum(values_of(rank_, count)), PeerLeft);
        return;
      }
      gather(values_of(rank_, count));
    }
  }

 private:
  Execution on() const { return {device_.get(), stream_.get()}; }

  std::vector<float> sum(std::vector<float> values) {
    const DeviceArray<float> data(*device_, values.size(), "a test");
    device_->upload(data.data(), values.data(), values.size() * 4);
    group_->begin_step(on());
    group_->tree_all_reduce(data.data(), std::ssize(values), on());
    group_->end_step(on());
    stream_->wait();
    group_->expect_whole();
    device_->download(values.data(), data.data(), values.size() * 4);
    return values;
  }

  void expect_sum(int64_t count) {
    const ScopedFlushToZero flush;
    std::vector<std::vector<float>> level;
    for (int r = 0; r < size_; ++r) level.push_back(values_of(r, count));
    for (int n = size_; n > 1; n /= 2)
      for (int r = 0; r < n / 2; ++r)
        for (int64_t i = 0; i < count; ++i) level[r][i] = level[2 * r][i] + level[2 * r + 1][i];
    EXPECT_TRUE(are_same(sum(values_of(rank_, count)), level[0])) << count;
  }

  void gather(const std::vector<float>& mine) {
    const size_t count = mine.size();
    const DeviceArray<float> piece(*device_, count, "a test"),
        all(*device_, count * size_, "a test");
    device_->upload(piece.data(), mine.data(), count * 4);
    group_->all_gather(piece.data(), static_cast<int64_t>(count) * 4, all.data(), on());
    stream_->wait();
    std::vector<float> found(count * size_);
    device_->download(found.data(), all.data(), found.size() * 4);
    for (int r = 0; r < size_; ++r)
      EXPECT_TRUE(are_same({found.begin() + r * count, found.begin() + (r + 1) * count},
                           values_of(r, static_cast<int64_t>(count))));
  }

  // In a test nobody watches processes: after two seconds of waiting the other one has ended.
  std::string look_at_others() { return ++looks_ > 100 ? "the other process has ended" : ""; }

  int rank_ = 0, size_ = 0, file_ = -1, looks_ = 0;
  std::string mode_;
  SharedMemory memory_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Group> host_, group_;
};

// Does nothing where no test has started it.
TEST(RankProcess, ComputesWithTheOthers) {
  if (const char* place = std::getenv(kRank)) ProcessRank(place).run();
}

}  // namespace
}  // namespace invar
