// The backward of routers and of shared experts against the scalar definition.
#include "cuda_check.h"
#include "kernels/select.h"

namespace invar {
namespace {

class ExpertsBackwardOnGpu : public CudaTest {
 protected:
  // Runs an operation of the reference on the host's side of its arrays, which `params` names, and
  // that of an order on the other.
  template <typename Params, typename Make>
  void run_both(void (*TrainingKernels::*operation)(const Params&, const Execution&), Order order,
                const Make& params) {
    run_on_host(operation, params);
    (cuda::training_kernels(order).*operation)(params(true), on());
    on().stream->wait();
  }
  template <typename Params, typename Make>
  void run_on_host(void (*TrainingKernels::*operation)(const Params&, const Execution&),
                   const Make& params) {
    const ScopedFlushToZero flush;
    (host_.*operation)(params(false), {});
  }

  // Ordinary numbers, or of any exponent, infinities and NaN among them.
  Twin<float> numbers(Random& random, int64_t count, bool of_any_size) {
    Twin<float> x(gpu(), random_floats(random, count));
    if (of_any_size)
      for (int64_t i = 0; i < count; i += 50)
        fill_row(random, std::span<float>(x.host).subspan(i, std::min<int64_t>(50, count - i)));
    x.upload();
    return x;
  }

  const TrainingKernels host_ = select_training_kernels(Order::portable, "scalar");
};

constexpr Order kOrders[] = {Order::portable, Order::hopper};

// The address of an array, on the side that is asked for.
template <typename T>
T* of(const Twin<T>& twin, bool on_gpu) {
  return on_gpu ? twin.device() : const_cast<T*>(twin.host.data());
}

float chain(const float* x, const float* y, int64_t count) {
  float sum = 0;
  for (int64_t n = 0; n < count; ++n) sum = __builtin_fmaf(x[n], y[n], sum);
  return sum;
}

TEST_F(ExpertsBackwardOnGpu, GradientsOfASharedExpert) {
  constexpr int64_t kRows = 37, kLogits = 6;
  for (const Order order : kOrders)
    for (const int64_t width : {1, 31, 64, 100, 320, 2048})
      for (const bool of_any_size : {false, true}) {
        SCOPED_TRACE(width);
        Random random(static_cast<uint64_t>(width));
        const int64_t stride = activation_stride(width), y_stride = round_up(width, kLeafPad);
        const auto d = numbers(random, kRows * width, of_any_size),
                   y = numbers(random, kRows * y_stride, of_any_size);
        auto z = numbers(random, kRows * kLogits, of_any_size);
        Twin<bf16_t> out(gpu(), kRows * stride);
        Twin<float> d_gates(gpu(), kRows);
        const auto params = [&](bool on_gpu) {
          return SharedGradientsParams{.d = of(d, on_gpu),
                                       .z = of(z, on_gpu) + kLogits - 1,
                                       .y = of(y, on_gpu),
                                       .z_stride = kLogits,
                                       .y_stride = y_stride,
                                       .rows = kRows,
                                       .width = width,
                                       .out = {of(out, on_gpu), DType::bf16, stride},
                                       .d_gates = of(d_gates, on_gpu)};
        };
        run_both(&TrainingKernels::shared_gradients, order, params);
        EXPECT_TRUE(out.matches());
        EXPECT_TRUE(d_gates.matches());
        if (of_any_size) continue;
        // Sums in another order, and another gate, are seen.
        for (int64_t t = 0; t < kRows; ++t)
          d_gates.host[static_cast<size_t>(t)] =
              chain(&d.host[static_cast<size_t>(t * width)],
                    &y.host[static_cast<size_t>(t * y_stride)], width);
        EXPECT_EQ(static_cast<bool>(d_gates.matches()), width == 1);
        z.host[kLogits - 1] += 1;
        run_on_host(&TrainingKernels::shared_gradients, params);
        EXPECT_FALSE(out.matches());
      }
}

struct Router {
  const char* name;
  Routing how;
  bool has_gate = false, is_balanced = false;
};

const Router kRouters[] = {
    {"a share of all", {.experts = 5, .chosen = 2}},
    {"shares of the chosen", {.experts = 128, .chosen = 8, .renormalised = true}, false, true},
    {"a softmax beside a gate", {.experts = 60, .chosen = 4}, true},
    {"a gate in a leaf of its own", {.experts = 32, .chosen = 3}, true, true},
    {"sigmoid", {.experts = 7, .chosen = 3, .score = ExpertScore::sigmoid}},
    {"GLM 4.5",
     {.experts = 160,
      .chosen = 8,
      .score = ExpertScore::sigmoid,
      .renormalised = true,
      .epsilon = 1e-20f,
      .scale = 2.5f},
     false,
     true},
    {"an epsilon that counts",
     {.experts = 6,
      .chosen = 2,
      .score = ExpertScore::sigmoid,
      .renormalised = true,
      .epsilon = 0.25f},
     true},
};

TEST_F(ExpertsBackwardOnGpu, GradientsOfARouter) {
  constexpr int64_t kRows = 96, kBalanceRows = 32;
  for (const Order order : kOrders)
    for (const auto& [name, how, has_gate, is_balanced] : kRouters)
      for (const bool of_any_size : {false, true}) {
        SCOPED_TRACE(name);
        Random random(static_cast<uint64_t>(how.experts));
        const int64_t columns = how.experts + (has_gate ? 1 : 0);
        const int64_t stride = activation_stride(columns), pairs = kRows * how.chosen;
        auto logits = numbers(random, kRows * columns, of_any_size);
        const auto d_weights = numbers(random, pairs, of_any_size),
                   d_gates = numbers(random, kRows, of_any_size),
                   balance = numbers(random, kRows / kBalanceRows * how.experts, false);
        Twin<int32_t> ids(gpu(), pairs);
        const auto step = static_cast<uint32_t>(how.experts / how.chosen);
        for (int64_t i = 0; i < pairs; ++i)
          ids.host[static_cast<size_t>(i)] =
              static_cast<int32_t>(i % how.chosen * step + random.below(step));
        ids.upload();
        Twin<bf16_t> out(gpu(), kRows * stride);
        const auto params = [&](bool on_gpu) {
          return RouterBackwardParams{.how = how,
                                      .logits = of(logits, on_gpu),
                                      .stride = columns,
                                      .ids = of(ids, on_gpu),
                                      .d_weights = of(d_weights, on_gpu),
                                      .balance = is_balanced ? of(balance, on_gpu) : nullptr,
                                      .balance_rows = kBalanceRows,
                                      .d_gates = has_gate ? of(d_gates, on_gpu) : nullptr,
                                      .rows = kRows,
                                      .out = {of(out, on_gpu), DType::bf16, stride}};
        };
        run_both(&TrainingKernels::router_backward, order, params);
        EXPECT_TRUE(out.matches());
        if (of_any_size) continue;
        // Another logit of an expert, and one of the gate, are seen.
        std::vector<int64_t> others{ids.host[0]};
        if (has_gate) others.push_back(how.experts);
        for (const int64_t column : others) {
          const AlignedVector<float> before = logits.host;
          logits.host[static_cast<size_t>(column)] += 1;
          run_on_host(&TrainingKernels::router_backward, params);
          EXPECT_FALSE(out.matches()) << column;
          logits.host = before;
        }
      }
}

}  // namespace
}  // namespace invar
