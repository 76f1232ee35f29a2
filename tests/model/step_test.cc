// What a step asks of a device: one wait, results that are there after it, and operations that can
// be recorded. On a device that does its work late, which shows what a GPU would get wrong; the
// same cases run on a GPU in tests/cuda/step_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "adapter_steps.h"
#include "base/error.h"
#include "kernels/select.h"
#include "model/step_tables.h"
#include "step_case.h"
#include "support/deferred_device.h"

namespace invar {
namespace {

using testing_model::StepCase;

class StepTest : public ::testing::TestWithParam<Order> {
 protected:
  const std::unique_ptr<Device> host_ = make_host_device(), device_ = make_deferred_device();
  ThreadPool pool_{1};
  StepCase expected_{*host_, select_kernels(GetParam(), "auto"), &pool_};
  StepCase found_{*device_, deferred_kernels(GetParam()), nullptr};
};
INSTANTIATE_TEST_SUITE_P(Orders, StepTest, ::testing::Values(Order::portable, Order::hopper),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(StepTest, GivesTheBitsOfTheHost) {
  for (const int rows : {20, 1, 1, 5, 1})
    EXPECT_EQ(found_.logits(found_.batch(rows, 1)), expected_.logits(expected_.batch(rows, 1)));
}

TEST_P(StepTest, WaitsOnceAndHasTheTokens) {
  for (const int rows : {20, 1, 1, 1}) {
    const int64_t before = device_->waits();
    const auto tokens = found_.tokens(found_.batch(rows, 1));
    EXPECT_EQ(device_->waits() - before, 1) << rows << " rows of each sequence";
    EXPECT_EQ(tokens, expected_.tokens(expected_.batch(rows, 1)));
  }
}

TEST_P(StepTest, TwoInFlightGiveTheTokensOfTwoInTurn) {
  const auto wanted = expected_.tokens_in_turn(6);
  const int64_t before = device_->waits();
  EXPECT_EQ(found_.tokens_in_flight(6), wanted);
  EXPECT_LE(device_->waits() - before, 2 * 6);
  // The control: another sequence's tokens.
  StepCase other(*device_, deferred_kernels(GetParam()), nullptr);
  EXPECT_NE(other.tokens_in_flight(6, 1), wanted);
}

// On a host a step is over when it is begun, and must leave what the one before has to say.
TEST_P(StepTest, TwoInFlightOnAHostToo) {
  StepCase in_flight(*host_, select_kernels(GetParam(), "auto"), &pool_);
  EXPECT_EQ(in_flight.tokens_in_flight(10), expected_.tokens_in_turn(10));
}

TEST_P(StepTest, WaitsAreCounted) {
  const DeviceArray<float> array(*device_, 1, "a test");
  const int64_t before = device_->waits();
  float x = 0;
  device_->download(&x, array.data(), sizeof x);
  const auto stream = device_->make_stream();
  stream->wait();
  EXPECT_EQ(device_->waits() - before, 2);
}

TEST_P(StepTest, ARecordedStepComputesWhatIsPreparedThen) {
  for (StepCase* c : {&expected_, &found_}) c->logits(c->batch(20, 1));
  const Batch first = found_.batch(1, 2), second = found_.batch(1, 3);
  expected_.logits(expected_.batch(1, 2));
  const auto wanted = expected_.logits(expected_.batch(1, 3));

  found_.prepare(first);
  const std::unique_ptr<Graph> graph = found_.record(first);
  const auto of_first = found_.logits(*graph, first);
  EXPECT_NE(found_.logits(*graph, first), wanted);  // not prepared: the first one again
  EXPECT_EQ(found_.logits(*graph, first), of_first);
  found_.prepare(second);
  EXPECT_EQ(found_.logits(*graph, second), wanted);
}

// Every batch of a shape after its first one is launched as a graph.
TEST_P(StepTest, GraphsGiveTheBitsOfLaunching) {
  StepGraphs graphs;
  for (const int rows : {20, 1, 1, 2, 1, 2, 1})
    EXPECT_EQ(found_.logits(found_.batch(rows, rows), &graphs),
              expected_.logits(expected_.batch(rows, rows)));
  EXPECT_EQ(graphs.launched(), 4);
}

TEST_P(StepTest, GraphsAreGoodForOtherAdapters) {
  testing_model::expect_adapters_in_graphs(expected_, found_);
}

// What a shape leaves out would be seen: a graph of other rows gives other logits.
// Hidden states that a drafter reads come from recorded steps, too; each layer's from graphs of its
// own.
TEST_P(StepTest, GraphsKeepHiddenStates) {
  StepGraphs graphs;
  for (int step = 0; step < 6; ++step) {
    const int layer = 1 + step % 2;
    const Batch batch = found_.batch(1, 1);
    const auto hidden = found_.hidden_after(layer, batch, &graphs);
    EXPECT_EQ(hidden, expected_.hidden_after(layer, batch)) << step;
    EXPECT_NE(hidden, expected_.hidden_after(3 - layer, batch)) << step;
  }
  EXPECT_EQ(graphs.launched(), 4);
}

TEST_P(StepTest, AGraphOfAnotherShapeGivesOtherBits) {
  StepGraphs graphs;
  const StepShape one{.rows = 1};
  for (StepCase* c : {&expected_, &found_}) c->logits(c->batch(20, 1));
  for (const int rows : {1, 1, 2}) {
    const Batch batch = found_.batch(rows, rows);
    const auto wanted = expected_.logits(expected_.batch(rows, rows));
    found_.prepare(batch);
    if (rows == 1)
      EXPECT_EQ(found_.logits(graphs, one, batch), wanted);
    else
      EXPECT_NE(found_.logits(graphs, one, batch), wanted);
  }
}

TEST_P(StepTest, RecordingSeesAWaitAndAnAllocation) {
  const auto stream = device_->make_stream();
  EXPECT_THROW(stream->record_graph([&] { stream->wait(); }), Error);
  EXPECT_THROW(stream->record_graph([&] { DeviceArray<float>(*device_, 1, "a test"); }), Error);
}

// A GPU computes tables of many rows by tiles, the rows of others one by one.
TEST(StepTablesTest, NameTheRowsOfTablesWithoutMany) {
  const auto host = make_host_device();
  const auto stream = host->make_stream();
  Batch batch;
  for (const int rows : {3, kManyRows, 1, kManyRows - 1}) {
    const auto sequence = static_cast<int32_t>(batch.sequences.size());
    for (int i = 0; i < rows; ++i)
      batch.rows.push_back({.token = 1, .position = i, .sequence = sequence});
    batch.sequences.push_back({{sequence}});
  }
  StepTableBuilder builder;
  const StepTables tables = builder.build(batch, 64, {host.get(), stream.get()});
  EXPECT_EQ(tables.fewest_rows, 1);
  EXPECT_EQ(tables.most_rows, kManyRows);
  std::vector<int32_t> few = {0, 1, 2, 3 + kManyRows};
  for (int i = 0; i < kManyRows - 1; ++i) few.push_back(4 + kManyRows + i);
  ASSERT_EQ(tables.few_rows[0], std::ssize(few));
  EXPECT_TRUE(std::equal(few.begin(), few.end(), tables.few_rows + 1));
}

// A GPU does not cut rows that are about as long as each other.
TEST(StepTablesTest, SayWhetherRowsAreEven) {
  const auto host = make_host_device();
  const auto stream = host->make_stream();
  StepTableBuilder builder;
  const auto are_even = [&](std::vector<int> lengths) {
    Batch batch;
    for (const int length : lengths) {
      const auto sequence = static_cast<int32_t>(batch.sequences.size());
      batch.rows.push_back({.token = 1, .position = length - 1, .sequence = sequence});
      batch.sequences.push_back({std::vector<int32_t>(length / 64 + 1, sequence)});
    }
    return builder.build(batch, 64, {host.get(), stream.get()}).rows_are_even;
  };
  EXPECT_TRUE(are_even({1}));
  EXPECT_TRUE(are_even({4000}));
  EXPECT_TRUE(are_even({1024, 1100, 1088, 1030}));
  EXPECT_TRUE(are_even({4000, 4200, 4100}));
  EXPECT_FALSE(are_even({1024, 1300, 1024, 1024}));
  EXPECT_FALSE(are_even({500, 12000, 3000}));
}

class SharedPrefixesTest : public ::testing::Test {
 protected:
  // Sequences that decode at `position`: of the first `shared[i]` blocks all have the same.
  std::vector<SharedPrefix> find(const std::vector<int>& shared, int position,
                                 int block_size = 64) {
    rows_.clear();
    sequences_.clear();
    int32_t next = 1000;
    for (const int blocks : shared) {
      const auto sequence = static_cast<int32_t>(sequences_.size());
      rows_.push_back({.token = 1, .position = position, .sequence = sequence});
      auto& own = sequences_.emplace_back().blocks;
      for (int b = 0; b <= position / block_size; ++b) own.push_back(b < blocks ? b : next++);
    }
    placement_.build(rows_, sequences_, {}, block_size);
    std::vector<int32_t> few(shared.size()), positions(shared.size(), position);
    std::iota(few.begin(), few.end(), 0);
    found_.find(placement_, few, positions, block_size);
    return {found_.prefixes().begin(), found_.prefixes().end()};
  }

  std::vector<BatchRow> rows_;
  std::vector<BatchSequence> sequences_;
  Placement placement_;
  SharedPrefixes found_;
};

TEST_F(SharedPrefixesTest, AreFoundAmongNeighbours) {
  // 16 rows that share 10 blocks of 64 slots: 5 splits; a row that shares nothing among them.
  std::vector<int> shared(17, 10);
  shared[3] = 0;
  const auto found = find(shared, 1000);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], (SharedPrefix{.first_row = 0, .splits = 5, .rows = 0x1fff7}));
  EXPECT_EQ(found_.splits()[0], 5);
  EXPECT_EQ(found_.splits()[3], 0);
  EXPECT_EQ(found_.splits()[16], 5);
}

TEST_F(SharedPrefixesTest, AreLeftOutWhereTheyAreNotWorthIt) {
  EXPECT_TRUE(find(std::vector<int>(15, 10), 1000).empty());
  EXPECT_TRUE(find(std::vector<int>(40, 3), 1000).empty());  // one split and a half
  EXPECT_TRUE(find(std::vector<int>(40, 0), 1000).empty());
  // Not the split that the row itself is in.
  EXPECT_EQ(find(std::vector<int>(16, 6), 383)[0].splits, 2);
  EXPECT_EQ(find(std::vector<int>(16, 6), 384)[0].splits, 3);
}

TEST_F(SharedPrefixesTest, AreThoseThatSaveMost) {
  // 20 rows share 32 blocks, 20 more only the first 8.
  std::vector<int> shared(40, 32);
  for (int i = 0; i < 20; ++i) shared[2 * i + 1] = 8;
  const auto found = find(shared, 3000);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].splits, 16);
  EXPECT_EQ(found[1].splits, 4);
  EXPECT_EQ(found[0].rows & found[1].rows, 0u);
  // Every window of 64 rows has its own.
  const auto windows = find(std::vector<int>(150, 32), 3000);
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_EQ(windows[1].first_row, 64);
  EXPECT_EQ(windows[2].rows, (uint64_t{1} << 22) - 1);
  EXPECT_LE(windows.size(), SharedPrefixes::most_prefixes(150));
}

}  // namespace
}  // namespace invar
