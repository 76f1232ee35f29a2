// The backward of layers with states, of both orders, against the scalar definition.
#include <fmt/format.h>

#include <numeric>

#include "cuda_check.h"
#include "kernels/recurrent_backward.h"
#include "kernels/select.h"

namespace invar {
namespace {

struct Heads {
  Recurrence kind;
  int key_heads, heads, key_size, value_size;
  int64_t channels() const { return kind == Recurrence::channel_delta ? key_size : 1; }
};

// Whole sequences, and the gradients of everything that a recurrence reads, on both sides.
class Sequences {
 public:
  Sequences(Device& gpu, Random& random, const Heads& heads)
      : h_(heads),
        gpu_(gpu),
        q_(gpu, keys(random)),
        k_(gpu, keys(random)),
        v_(gpu, random_floats(random, kRows * values())),
        decays_(gpu, decays(random)),
        factors_(gpu, factors(random)),
        skips_(gpu, random_floats(random, heads.heads)),
        begins_(gpu, std::vector<int32_t>{0, 1, 16, 80, 150, kRows}),
        d_out_(gpu, random_floats(random, kRows * values())),
        d_mixed_(gpu, kRows * stride()),
        d_decays_(gpu, kRows * heads.heads * heads.channels()),
        d_factors_(gpu, kRows * heads.heads),
        d_skips_(gpu, kRows * heads.heads) {}

  void run_on_cpu(Order order) {
    const ScopedFlushToZero flush;
    const TrainingKernels kernels = select_training_kernels(order, "scalar");
    AlignedVector<std::byte> scratch(
        static_cast<size_t>(kernels.recurrence_scratch(kMaxPositions, h_.key_size, h_.value_size)));
    run(kernels, select_kernels(order, "scalar").matmul, false, scratch.data(), scratch.size(), {});
  }
  // With memory for all heads at a time, or for this share of them.
  void run_on_gpu(Order order, const Execution& on, int64_t share = 1) {
    const TrainingKernels kernels = cuda::training_kernels(order);
    const int64_t bytes =
        kernels.recurrence_scratch(kMaxPositions, h_.key_size, h_.value_size) / share;
    DeviceArray<std::byte> scratch(gpu_, static_cast<size_t>(bytes), "a test's memory");
    run(kernels, nullptr, true, scratch.data(), bytes, on);
    on.stream->wait();
  }
  ::testing::AssertionResult match() const {
    if (auto result = d_mixed_.matches(); !result) return result << " (queries, keys, values)";
    if (auto result = d_decays_.matches(); !result) return result << " (decays)";
    if (auto result = d_factors_.matches(); !result) return result << " (factors)";
    return has_skips() ? d_skips_.matches() : ::testing::AssertionSuccess();
  }
  // Another sequence's first row, on the GPU's side.
  void spoil_gradient() {
    d_out_.host[150 * static_cast<size_t>(values())] += 1.0f;
    d_out_.upload();
  }

 private:
  static constexpr int kRows = 300, kMaxPositions = 160;
  bool has_skips() const { return h_.kind == Recurrence::state_space; }
  int64_t values() const { return int64_t{h_.heads} * h_.value_size; }
  int64_t all_keys() const { return int64_t{h_.key_heads} * h_.key_size; }
  int64_t stride() const { return 2 * all_keys() + values() + 3; }

  std::vector<bf16_t> keys(Random& random) const {
    const int64_t padded = round_up(h_.key_size, kLeafPad);
    std::vector<bf16_t> x(static_cast<size_t>(kRows * h_.key_heads * padded));
    for (int64_t i = 0; i < std::ssize(x); ++i)
      if (i % padded < h_.key_size) x[i] = f32_to_bf16(0.2f * random.uniform());
    return x;
  }
  std::vector<float> decays(Random& random) const {
    std::vector<float> g = random_floats(random, kRows * h_.heads * h_.channels());
    for (float& x : g) x = -0.2f * x * x;
    return g;
  }
  std::vector<float> factors(Random& random) const {
    std::vector<float> b = random_floats(random, int64_t{kRows} * h_.heads);
    for (float& x : b) x = 0.5f + 0.5f * x;
    return b;
  }

  void run(const TrainingKernels& kernels, Operation<MatmulParams> matmul, bool on_gpu,
           std::byte* scratch, int64_t bytes, const Execution& at) {
    const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
    float* d = of(d_mixed_);
    kernels.recurrence_backward({.kind = h_.kind,
                                 .key_heads = h_.key_heads,
                                 .heads = h_.heads,
                                 .key_size = h_.key_size,
                                 .value_size = h_.value_size,
                                 .q = of(q_),
                                 .k = of(k_),
                                 .v = of(v_),
                                 .v_stride = values(),
                                 .decays = of(decays_),
                                 .factors = of(factors_),
                                 .skips = has_skips() ? of(skips_) : nullptr,
                                 .sequence_begin = of(begins_),
                                 .sequences = 5,
                                 .d_out = of(d_out_),
                                 .d_out_stride = values(),
                                 .dq = d,
                                 .dk = d + all_keys(),
                                 .dv = d + 2 * all_keys(),
                                 .d_stride = stride(),
                                 .d_decays = of(d_decays_),
                                 .d_factors = of(d_factors_),
                                 .d_skips = has_skips() ? of(d_skips_) : nullptr,
                                 .scratch = scratch,
                                 .scratch_stride = bytes,
                                 .max_positions = kMaxPositions,
                                 .matmul = matmul},
                                at);
  }

  const Heads h_;
  Device& gpu_;
  Twin<bf16_t> q_, k_;
  Twin<float> v_, decays_, factors_, skips_;
  Twin<int32_t> begins_;
  Twin<float> d_out_, d_mixed_, d_decays_, d_factors_, d_skips_;
};

using StatesBackwardOnGpu = CudaTest;

TEST_F(StatesBackwardOnGpu, Recurrences) {
  for (const Order order : {Order::portable, Order::hopper})
    for (const Heads& heads :
         {Heads{Recurrence::delta, 2, 4, 64, 64}, Heads{Recurrence::delta, 1, 1, 128, 256},
          Heads{Recurrence::delta, 1, 3, 33, 17}, Heads{Recurrence::channel_delta, 2, 2, 64, 64},
          Heads{Recurrence::channel_delta, 1, 1, 40, 20},
          Heads{Recurrence::state_space, 1, 3, 128, 64},
          Heads{Recurrence::state_space, 2, 4, 24, 20}}) {
      SCOPED_TRACE(fmt::format("kind {}, {} x {}, {}", static_cast<int>(heads.kind), heads.key_size,
                               heads.value_size, name_of(order)));
      Random random(11);
      Sequences sequences(gpu(), random, heads);
      sequences.run_on_cpu(order);
      sequences.run_on_gpu(order, on());
      EXPECT_TRUE(sequences.match());
      // Another gradient is another result; with the first one a few heads at a time have the same.
      sequences.spoil_gradient();
      sequences.run_on_gpu(order, on());
      EXPECT_FALSE(sequences.match());
      sequences.run_on_cpu(order);
      sequences.run_on_gpu(order, on(), 50);
      EXPECT_TRUE(sequences.match());
    }
}

// Calls run(kernels, on the GPU, execution) on both sides, in this order.
template <typename Run>
void run_on_both(const Run& run, const Execution& on) {
  {
    const ScopedFlushToZero flush;
    run(select_training_kernels(Order::portable, "scalar"), false, Execution{});
  }
  run(cuda::training_kernels(Order::portable), true, on);
  on.stream->wait();
}

TEST_F(StatesBackwardOnGpu, ShortConvolutions) {
  constexpr int64_t kRows = 96, kChannels = 70, kStride = 80, kTaps = 4;
  Random random(5);
  std::vector<int32_t> position(kRows);
  for (int32_t t = 0; t < kRows; ++t) position[t] = t < 41 ? t : t < 43 ? t - 41 : t - 43;
  Twin<int32_t> positions(gpu(), position);
  Twin<float> x(gpu(), random_floats(random, kRows * kStride)),
      factor(gpu(), random_floats(random, kRows * kStride)),
      gate(gpu(), random_floats(random, kRows * kStride)),
      weight(gpu(), random_floats(random, kTaps * kStride)),
      bias(gpu(), random_floats(random, kChannels)),
      d_out(gpu(), random_floats(random, kRows * kStride));
  for (const bool is_gated : {false, true}) {
    Twin<float> d_sum(gpu(), kRows * kStride), dx(gpu(), kRows * kStride),
        d_factor(gpu(), kRows * kStride), d_gate(gpu(), kRows * kStride),
        d_weight(gpu(), random_floats(random, kTaps * kStride)),
        d_bias(gpu(), random_floats(random, kChannels));
    const auto run = [&](const TrainingKernels& kernels, bool on_gpu, const Execution& at) {
      const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
      const auto gated = [&](auto& twin) { return is_gated ? of(twin) : nullptr; };
      kernels.short_conv_backward({.x = of(x),
                                   .x_stride = kStride,
                                   .factor = gated(factor),
                                   .factor_stride = kStride,
                                   .positions = of(positions),
                                   .rows = kRows,
                                   .channels = kChannels,
                                   .taps = kTaps,
                                   .weight = of(weight),
                                   .weight_stride = kStride,
                                   .bias = is_gated ? nullptr : of(bias),
                                   .silu = !is_gated,
                                   .gate = gated(gate),
                                   .gate_stride = kStride,
                                   .d_out = of(d_out),
                                   .d_out_stride = kStride,
                                   .d_sum = of(d_sum),
                                   .d_sum_stride = kStride,
                                   .dx = of(dx),
                                   .d_factor = gated(d_factor),
                                   .d_gate = gated(d_gate),
                                   .dx_stride = kStride,
                                   .d_weight = of(d_weight),
                                   .d_weight_stride = kStride,
                                   .d_bias = is_gated ? nullptr : of(d_bias)},
                                  at);
    };
    run_on_both(run, on());
    for (const Twin<float>* twin : {&d_sum, &dx, &d_factor, &d_gate, &d_weight, &d_bias})
      EXPECT_TRUE(twin->matches());
    // Sums over rows go on, on one side.
    run(cuda::training_kernels(Order::portable), true, on());
    on().stream->wait();
    EXPECT_TRUE(dx.matches());
    EXPECT_FALSE(d_weight.matches());
  }
}

TEST_F(StatesBackwardOnGpu, GatedNorms) {
  constexpr int64_t kRows = 7, kGroups = 3, kWidth = 70, kAll = kGroups * kWidth;
  Random random(6);
  Twin<float> x(gpu(), random_floats(random, kRows * kAll)),
      gate(gpu(), random_floats(random, kRows * kAll)), weight(gpu(), random_floats(random, kAll)),
      d_out(gpu(), random_floats(random, kRows * kAll));
  for (const auto& [is_sigmoid, gate_first] :
       {std::pair{false, false}, {true, false}, {false, true}}) {
    Twin<float> dx(gpu(), kRows * kAll), d_gate(gpu(), kRows * (kAll + 5)),
        d_normed(gpu(), kRows * kAll), normed(gpu(), kRows * kAll), rs(gpu(), kRows * kGroups);
    const auto run = [&](const TrainingKernels& kernels, bool on_gpu, const Execution& at) {
      const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
      kernels.gated_norm_backward({.forward = {.x = of(x),
                                               .x_stride = kAll,
                                               .gate = of(gate),
                                               .gate_stride = kAll,
                                               .weight = of(weight),
                                               .own_weights = gate_first,
                                               .is_sigmoid = is_sigmoid,
                                               .gate_first = gate_first,
                                               .eps = 1e-5f,
                                               .rows = kRows,
                                               .groups = kGroups,
                                               .width = kWidth,
                                               .out = {}},
                                   .d_out = of(d_out),
                                   .dx = of(dx),
                                   .d_gate = of(d_gate),
                                   .d_gate_stride = kAll + 5,
                                   .d_normed = of(d_normed),
                                   .normed = of(normed),
                                   .rs = of(rs)},
                                  at);
    };
    run_on_both(run, on());
    for (const Twin<float>* twin : {&dx, &d_gate, &d_normed, &normed, &rs})
      EXPECT_TRUE(twin->matches());
    weight.host[3] += 1.0f;
    run_on_both(run, on());
    EXPECT_FALSE(dx.matches());
    weight.upload();
  }
}

// In the place of the gradients of decays, where channels have some of their own.
TEST_F(StatesBackwardOnGpu, GatesAndKeys) {
  constexpr int64_t kRows = 9, kHeads = 5, kChannels = 70, kAll = kHeads * kChannels;
  Random random(7);
  Twin<float> a(gpu(), random_floats(random, kRows * kAll)),
      z(gpu(), random_floats(random, kRows * kHeads)), bias(gpu(), random_floats(random, kAll)),
      log_rate(gpu(), random_floats(random, kHeads)),
      decays(gpu(), random_floats(random, kRows * kAll)),
      d_factors(gpu(), random_floats(random, kRows * kHeads));
  for (const Recurrence kind :
       {Recurrence::delta, Recurrence::channel_delta, Recurrence::state_space}) {
    const bool has_channels = kind == Recurrence::channel_delta;
    const int64_t channels = has_channels ? kChannels : 1, width = kHeads * channels;
    Twin<float> d_decays(gpu(), random_floats(random, kRows * width)), da(gpu(), kRows * width),
        dz(gpu(), kRows * kHeads), rates(gpu(), kRows * kHeads),
        d_keys(gpu(), random_floats(random, kRows * kAll));
    const auto run = [&](const TrainingKernels& kernels, bool on_gpu, const Execution& at) {
      const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
      kernels.recurrent_gates_backward({.forward = {.kind = kind,
                                                    .a = of(a),
                                                    .a_stride = kAll,
                                                    .z = of(z),
                                                    .z_stride = kHeads,
                                                    .log_rate = of(log_rate),
                                                    .bias = of(bias),
                                                    .rows = kRows,
                                                    .heads = kHeads,
                                                    .channels = channels,
                                                    .doubles = true,
                                                    .least = 0.4f,
                                                    .most = 0.9f,
                                                    .decays = of(decays),
                                                    .factors = nullptr},
                                        .d_decays = of(d_decays),
                                        .d_factors = of(d_factors),
                                        .d_rates = has_channels ? of(rates) : nullptr,
                                        .da = of(has_channels ? d_decays : da),
                                        .da_stride = width,
                                        .dz = kind == Recurrence::state_space ? nullptr : of(dz),
                                        .dz_stride = kHeads},
                                       at);
      kernels.recurrent_keys_backward({.x = of(a),
                                       .x_stride = kAll,
                                       .d = of(d_keys),
                                       .d_stride = kAll,
                                       .rows = kRows,
                                       .heads = kHeads,
                                       .key_size = kChannels,
                                       .eps = 1e-6f,
                                       .scale = 0.125f},
                                      at);
    };
    run_on_both(run, on());
    for (const Twin<float>* twin : {&d_decays, &da, &dz, &rates, &d_keys})
      EXPECT_TRUE(twin->matches());
    log_rate.host[0] += 1.0f;
    run_on_both(run, on());
    EXPECT_FALSE((has_channels ? d_decays : da).matches());
    log_rate.upload();
  }
}

TEST_F(StatesBackwardOnGpu, SumsOverRowsGatesAndCurves) {
  constexpr int64_t kRows = 64, kCount = 21, kPadded = 32;
  Random random(8);
  Twin<float> x(gpu(), random_floats(random, kRows * kCount)),
      y(gpu(), random_floats(random, kRows * kCount)), of_x(gpu(), random_floats(random, kCount)),
      of_both(gpu(), random_floats(random, kCount)),
      dx(gpu(), random_floats(random, kRows * kCount)), d_gate(gpu(), kRows * kCount);
  Twin<bf16_t> attended = random_rows<bf16_t>(gpu(), random, kRows, kCount),
               curved(gpu(), kRows * kPadded);
  const auto run = [&](const TrainingKernels& kernels, bool on_gpu, const Execution& at) {
    const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
    kernels.row_sums({of(x), kCount, nullptr, 0, kRows, kCount, of(of_x)}, at);
    kernels.row_sums({of(x), kCount, of(y), kCount, kRows, kCount, of(of_both)}, at);
    kernels.curve_backward({.x = of(x),
                            .dy = of(y),
                            .rows = kRows,
                            .width = kCount,
                            .curve = Nonlinearity::relu_squared,
                            .out = {of(curved), DType::bf16, kPadded}},
                           at);
    kernels.output_gate_backward({.x = {of(attended), DType::bf16, activation_stride(kCount)},
                                  .gate = of(y),
                                  .d = of(dx),
                                  .rows = kRows,
                                  .width = kCount,
                                  .dx = of(dx),
                                  .d_gate = of(d_gate)},
                                 at);
  };
  run_on_both(run, on());
  for (const Twin<float>* twin : {&of_x, &of_both, &dx, &d_gate}) EXPECT_TRUE(twin->matches());
  EXPECT_TRUE(curved.matches());
  for (float& number : y.host) number += 1.0f;
  run_on_both(run, on());
  for (const Twin<float>* twin : {&of_both, &dx, &d_gate}) EXPECT_FALSE(twin->matches());
  EXPECT_FALSE(curved.matches());
}

}  // namespace
}  // namespace invar
