// What a model is spread over: threads, ranks, and pieces of a step's logits.
#include "engine/executor.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace invar {
namespace {

Model tiny(int threads, int ranks) {
  return Model({.model = "tiny", .load_format = "dummy:7", .threads = threads, .ranks = ranks});
}

int64_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
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
