// What a model is spread over: threads, ranks, and pieces of a step's logits.
#include "engine/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace invar {
namespace {

Model tiny(int threads, int ranks) {
  return Model({.model = "tiny", .load_format = "dummy:7", .threads = threads, .ranks = ranks});
}

// Threads that run. A thread that was joined may stay in /proc for a moment while it exits: joining
// waits for what the thread did, not for its entry. Its flags say so by then (proc(5), field 9 of
// stat; PF_EXITING in Linux).
bool runs(const std::filesystem::path& task) {
  std::ifstream file(task / "stat");
  std::string line;
  if (!std::getline(file, line)) return false;                  // gone since it was listed
  std::istringstream fields(line.substr(line.rfind(')') + 1));  // after the name: fields 3 and on
  std::string skipped;
  for (int field = 3; field < 9; ++field) fields >> skipped;
  constexpr uint64_t kExiting = 0x4;
  uint64_t flags = kExiting;
  fields >> flags;
  return (flags & kExiting) == 0;
}
int64_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::count_if(begin(tasks), end(tasks), [](const auto& task) { return runs(task); });
}

TEST(Executor, RanksShareTheThreadsOut) {
  for (const auto& [threads, each] : {std::pair(1, 1), {2, 1}, {4, 2}, {7, 3}}) {
    const int64_t before = threads_of_this_process();
    Model model = tiny(threads, 2);
    EXPECT_EQ(model.threads_of_rank(), each);
    const Executor one(model, {.blocks = 1}), other(model, {.blocks = 1});
    // The model's helpers, rank 1's own thread, and the helpers of both.
    EXPECT_EQ(threads_of_this_process() - before, threads - 1 + 1 + 2 * (each - 1))
        << threads << " threads";
  }
}

Batch scored(int rows, int every) {
  Batch batch{.sequences = {{{0, 1, 2, 3}}}};
  for (int i = 0; i < rows; ++i) {
    batch.rows.push_back({.token = (i * 37) % 500, .position = i, .sequence = 0});
    if (i % every == 0) batch.logit_rows.push_back(i);
  }
  return batch;
}

// The logits of all wanted rows with room for `room` at a time, and how many pieces they came in.
std::vector<float> logits_of(Model& model, const Batch& batch, int room, int& pieces) {
  Executor runner(model, {.blocks = 4, .max_rows = 256, .max_logit_rows = room});
  std::vector<float> all;
  const size_t vocab = static_cast<size_t>(model.spec().vocab);
  ForwardIo io;
  pieces = 0;
  io.take_logits = [&](int64_t first, std::span<const float> logits) {
    EXPECT_EQ(first * vocab, all.size());
    EXPECT_LE(logits.size(), room * vocab);
    all.insert(all.end(), logits.begin(), logits.end());
    ++pieces;
  };
  runner.run(batch, io);
  return all;
}

TEST(Executor, LogitsInPiecesAreTheSameBits) {
  for (const int ranks : {1, 2}) {
    Model model = tiny(2, ranks);
    const Batch batch = scored(200, 3);
    int pieces = 0;
    const std::vector<float> whole = logits_of(model, batch, 67, pieces);
    EXPECT_EQ(pieces, 1);
    EXPECT_EQ(whole.size(), 67u * model.spec().vocab);
    for (const int room : {1, 8, 66}) {
      EXPECT_EQ(logits_of(model, batch, room, pieces), whole) << room;
      EXPECT_EQ(pieces, (67 + room - 1) / room);
    }
    // The control: other rows have other logits.
    EXPECT_NE(logits_of(model, scored(201, 3), 67, pieces),
              logits_of(model, scored(200, 2), 67, pieces));
  }
}

}  // namespace
}  // namespace invar
