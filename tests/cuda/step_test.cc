// Steps on a GPU: one wait, and operations that can be recorded as a CUDA graph; see
// tests/model/step_test.cc.
#include "../model/adapter_steps.h"
#include "../model/step_case.h"
#include "cuda_check.h"

namespace invar {
namespace {

using testing_model::StepCase;
using Step = CudaTest;

constexpr Order kOrders[] = {Order::portable, Order::hopper};

TEST_F(Step, WaitsOnceAndHasTheTokens) {
  for (const Order order : kOrders) {
    const auto host = make_host_device();
    ThreadPool pool(1);
    StepCase expected(*host, cpu(order), &pool), found(gpu(), cuda::kernels(order), nullptr);
    for (const int rows : {20, 1, 1, 1}) {
      const int64_t before = gpu().waits();
      const auto tokens = found.tokens(found.batch(rows, 1));
      EXPECT_LE(gpu().waits() - before, 1) << name_of(order) << " " << rows;
      EXPECT_EQ(tokens, expected.tokens(expected.batch(rows, 1))) << name_of(order) << " " << rows;
    }
  }
}

TEST_F(Step, TwoInFlightGiveTheTokensOfTwoInTurn) {
  for (const Order order : kOrders) {
    const auto host = make_host_device();
    ThreadPool pool(1);
    StepCase expected(*host, cpu(order), &pool), found(gpu(), cuda::kernels(order), nullptr),
        other(gpu(), cuda::kernels(order), nullptr);
    const auto wanted = expected.tokens_in_turn(60);
    EXPECT_EQ(found.tokens_in_flight(60), wanted) << name_of(order);
    EXPECT_NE(other.tokens_in_flight(60, 1), wanted) << name_of(order);
  }
}

TEST_F(Step, ARecordedStepComputesWhatIsPreparedThen) {
  for (const Order order : kOrders) {
    const auto host = make_host_device();
    ThreadPool pool(1);
    StepCase expected(*host, cpu(order), &pool), found(gpu(), cuda::kernels(order), nullptr);
    for (StepCase* c : {&expected, &found}) c->logits(c->batch(20, 1));
    const Batch first = found.batch(1, 2), second = found.batch(1, 3);
    expected.logits(expected.batch(1, 2));
    const auto wanted = expected.logits(expected.batch(1, 3));

    found.prepare(first);
    const std::unique_ptr<Graph> graph = found.record(first);
    EXPECT_NE(found.logits(*graph, first), wanted) << name_of(order);
    found.prepare(second);
    EXPECT_EQ(found.logits(*graph, second), wanted) << name_of(order);
  }
}

// Decoding one token at a time, as an engine does: steps after the second are graphs.
TEST_F(Step, GraphsGiveTheBitsOfLaunching) {
  for (const Order order : kOrders) {
    StepCase launched(gpu(), cuda::kernels(order), nullptr),
        recorded(gpu(), cuda::kernels(order), nullptr);
    StepGraphs graphs;
    for (const int rows : {20, 1, 1, 2, 1, 17, 2, 1, 17})
      EXPECT_EQ(recorded.logits(recorded.batch(rows, rows), &graphs),
                launched.logits(launched.batch(rows, rows)))
          << name_of(order) << " " << rows;
    EXPECT_EQ(graphs.launched(), 5) << name_of(order);
  }
}

TEST_F(Step, GraphsAreGoodForOtherAdapters) {
  for (const Order order : kOrders) {
    const auto host = make_host_device();
    ThreadPool pool(1);
    StepCase expected(*host, cpu(order), &pool), found(gpu(), cuda::kernels(order), nullptr);
    testing_model::expect_adapters_in_graphs(expected, found);
  }
}

// Behind several splits of attention: those that a step does not write are read before the kernels
// before attention are done, the others after.
TEST_F(Step, ReadsWhatItWritesBehindALongPrompt) {
  DecoderSpec spec = preset_spec("tiny");
  spec.head_dim = 64;  // attention of single rows has no kernel for 32
  for (const Order order : kOrders) {
    const auto host = make_host_device();
    ThreadPool pool(1);
    StepCase expected(*host, cpu(order), &pool, spec),
        found(gpu(), cuda::kernels(order), nullptr, spec);
    StepGraphs graphs;
    for (int i = 0; i < 12; ++i) {
      expected.logits(expected.batch(20, i));
      found.logits(found.batch(20, i));
    }
    for (const int rows : {1, 1, 1, 3, 1, 1, 3, 1})
      EXPECT_EQ(found.logits(found.batch(rows, rows), &graphs),
                expected.logits(expected.batch(rows, rows)))
          << name_of(order) << " " << rows;
  }
}

}  // namespace
}  // namespace invar
