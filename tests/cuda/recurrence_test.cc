// Recurrent layers' operations, of both orders, against the scalar definition.
#include <fmt/format.h>

#include <cmath>

#include "kernels/select.h"
#include "recurrent_twins.h"

namespace invar {
namespace {

using RecurrentOnGpu = CudaTest;

TEST_F(RecurrentOnGpu, RecurrencesInPieces) {
  struct Case {
    Order order;
    DType type;
  };
  for (const Case& c : {Case{Order::portable, DType::bf16}, Case{Order::portable, DType::f32},
                        Case{Order::hopper, DType::bf16}})
    for (const RecurrentLayer& shape : {RecurrentLayer{Recurrence::delta, 2, 4, 128, 128},
                                        RecurrentLayer{Recurrence::delta, 1, 1, 96, 192},
                                        RecurrentLayer{Recurrence::delta, 1, 2, 33, 17},
                                        RecurrentLayer{Recurrence::channel_delta, 2, 2, 128, 128},
                                        RecurrentLayer{Recurrence::channel_delta, 1, 1, 40, 20},
                                        RecurrentLayer{Recurrence::state_space, 1, 3, 128, 64}})
      for (const int most : {50, 150}) {
        RecurrentLayer layer = shape;
        layer.type = c.type;
        layer.layout = c.order == Order::hopper ? CacheLayout::rows : CacheLayout::panels;
        SCOPED_TRACE(fmt::format("kind {}, {} x {}, {}, {}, up to {} rows",
                                 static_cast<int>(layer.kind), layer.key_size, layer.value_size,
                                 name_of(c.order), name_of(c.type), most));
        constexpr int64_t kRows = 150;
        Random random(7);
        RecurrentRows rows;
        rows.add_sequence(0, kRows);
        RecurrentTwins twins(gpu(), random, layer, rows);
        {
          const ScopedFlushToZero flush;
          twins.run(select_kernels(c.order, "scalar"), false, 0, kRows, {});
        }
        for (int64_t first = 0, last; first < kRows; first = last) {
          last = std::min<int64_t>(kRows, first + 1 + random.below(static_cast<uint64_t>(most)));
          twins.run(cuda::kernels(c.order), true, first, last, on());
          on().stream->wait();
        }
        EXPECT_TRUE(twins.match());
        // Other decays are another result, of every row that has rows before it.
        twins.spoil_decays();
        twins.run(cuda::kernels(c.order), true, 0, kRows, on());
        on().stream->wait();
        EXPECT_FALSE(twins.match());
        EXPECT_EQ(twins.rows_apart(), rows.behind_others());
      }
}

TEST_F(RecurrentOnGpu, DecaysAndGatedNorms) {
  constexpr int64_t kRows = 5, kHeads = 6, kChannels = 24, kWidth = kHeads * kChannels;
  Random random(9);
  Twin<float> a(gpu(), random_floats(random, kRows * kWidth)),
      z(gpu(), random_floats(random, kRows * kWidth)), bias(gpu(), random_floats(random, kWidth)),
      log_rate(gpu(), random_floats(random, kHeads));
  for (const Recurrence kind :
       {Recurrence::delta, Recurrence::channel_delta, Recurrence::state_space}) {
    const int64_t channels = kind == Recurrence::channel_delta ? kChannels : 1;
    Twin<float> decays(gpu(), kRows * kHeads * channels), factors(gpu(), kRows * kHeads);
    Twin<float> out(gpu(), kRows * (kWidth + 16));
    const auto run = [&](const Kernels& kernels, bool on_gpu, const Execution& at) {
      const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
      kernels.recurrent_gates({.kind = kind,
                               .a = of(a),
                               .a_stride = kWidth,
                               .z = of(z),
                               .z_stride = kWidth,
                               .log_rate = of(log_rate),
                               .bias = of(bias),
                               .rows = kRows,
                               .heads = kHeads,
                               .channels = channels,
                               .doubles = true,
                               .least = 0.1f,
                               .most = 1.0f,
                               .decays = of(decays),
                               .factors = of(factors)},
                              at);
      kernels.gated_norm({.x = of(a),
                          .x_stride = kWidth,
                          .gate = of(z),
                          .gate_stride = kWidth,
                          .weight = of(bias),
                          .own_weights = kind == Recurrence::state_space,
                          .is_sigmoid = kind == Recurrence::channel_delta,
                          .gate_first = kind == Recurrence::state_space,
                          .eps = 1e-6f,
                          .rows = kRows,
                          .groups = kHeads,
                          .width = kChannels,
                          .out = {of(out), DType::f32, kWidth + 16}},
                         at);
    };
    {
      const ScopedFlushToZero flush;
      run(select_kernels(Order::portable, "scalar"), false, {});
    }
    run(cuda::kernels(Order::portable), true, on());
    on().stream->wait();
    EXPECT_TRUE(decays.matches());
    EXPECT_TRUE(factors.matches());
    EXPECT_TRUE(out.matches());
  }
}

// Groups as layers have them, whose results are operands of products.
TEST_F(RecurrentOnGpu, GatedNormsOfHeads) {
  constexpr int64_t kRows = 3, kGroups = 5;
  Random random(4);
  for (const int64_t width : {64, 128, 192})
    for (const bool is_sigmoid : {false, true}) {
      SCOPED_TRACE(width);
      const int64_t all = kGroups * width;
      Twin<float> x(gpu(), random_floats(random, kRows * all)),
          z(gpu(), random_floats(random, kRows * all)), weight(gpu(), random_floats(random, width));
      // Gates that are not tame.
      z.host[1] = -200.0f, z.host[2] = 0.0f, z.host[3] = 1e30f;
      z.upload();
      Twin<bf16_t> out(gpu(), kRows * all);
      const auto run = [&](const Kernels& kernels, bool on_gpu, const Execution& at) {
        const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
        kernels.gated_norm({.x = of(x),
                            .x_stride = all,
                            .gate = of(z),
                            .gate_stride = all,
                            .weight = of(weight),
                            .own_weights = false,
                            .is_sigmoid = is_sigmoid,
                            .gate_first = false,
                            .eps = 1e-6f,
                            .rows = kRows,
                            .groups = kGroups,
                            .width = width,
                            .out = {of(out), DType::bf16, all}},
                           at);
      };
      {
        const ScopedFlushToZero flush;
        run(select_kernels(Order::portable, "scalar"), false, {});
      }
      run(cuda::kernels(Order::hopper), true, on());
      on().stream->wait();
      EXPECT_TRUE(out.matches());
      // Other weights are another output.
      weight.host[0] += 1;
      weight.upload();
      run(cuda::kernels(Order::hopper), true, on());
      on().stream->wait();
      EXPECT_FALSE(out.matches());
    }
}

TEST_F(RecurrentOnGpu, CopiesOfCells) {
  constexpr int64_t kCell = 96;
  Random random(2);
  Twin<float> cells(gpu(), random_floats(random, 4 * kCell));
  Twin<CellCopy> copies(gpu(), std::vector<CellCopy>{{0, 3}, {2, 1}});
  cuda::kernels(Order::portable)
      .copy_cells({{cells.device(), kCell * 4}, copies.device(), 2}, on());
  on().stream->wait();
  EXPECT_FALSE(cells.matches());
  select_kernels(Order::portable, "scalar")
      .copy_cells({{cells.host.data(), kCell * 4}, copies.host.data(), 2}, {});
  EXPECT_TRUE(cells.matches());
}

}  // namespace
}  // namespace invar
