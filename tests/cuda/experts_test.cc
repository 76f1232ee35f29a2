// Mixture of experts: the choice, the sorted rows, the products of both orders and the sums against
// the CPU's kernels.
#include <cmath>

#include "cuda_check.h"
#include "kernels/cuda/at_once.h"
#include "kernels/select.h"
#include "matrix_stack.h"

namespace invar {
namespace {

struct Case {
  int64_t rows;
  int32_t experts, chosen;
  int64_t d, f;
  bool bias = false;
};

// From a row that goes through a few experts to tiles of every height.
constexpr Case kCases[] = {{1, 8, 2, 64, 40},           {1, 128, 8, 2048, 768},
                           {3, 60, 4, 96, 33, true},    {40, 12, 3, 64, 80, true},
                           {130, 4, 1, 48, 100},        {64, 3, 2, 320, 48},
                           {300, 16, 4, 128, 64, true}, {517, 8, 2, 256, 192},
                           {700, 5, 5, 64, 129},        {1100, 3, 2, 320, 200, true}};

class ExpertsOnGpu : public CudaTest {
 protected:
  struct Chosen {
    Twin<int32_t> ids, begin, place, rows_of;
    Twin<float> weights;
    Twin<int32_t> places;
    Chosen(Device& gpu, const Case& c)
        : ids(gpu, c.rows * c.chosen),
          begin(gpu, c.experts + 1),
          place(gpu, c.rows * c.chosen),
          rows_of(gpu, c.rows * c.chosen),
          weights(gpu, c.rows * c.chosen),
          places(gpu, reversed(c.experts)) {}
    // Experts lie the other way round, each twice.
    static std::vector<int32_t> reversed(int32_t experts) {
      std::vector<int32_t> places;
      for (int32_t e = 0; e < experts; ++e)
        places.insert(places.end(), {experts - 1 - e, (experts - e) % experts});
      return places;
    }
    const int32_t* places_of(const Case& c, bool on_gpu) {
      return !c.bias ? nullptr : on_gpu ? places.device() : places.host.data();
    }
    void upload() {
      for (Twin<int32_t>* twin : {&ids, &begin, &place, &rows_of}) twin->upload();
      weights.upload();
    }
  };

  // On the CPU; the GPU's own are compared with it and then used.
  void choose(Random& random, const Case& c, const Routing& how, Chosen& chosen) {
    const Kernels host = cpu(Order::portable), device = cuda::kernels(Order::portable);
    Twin<float> logits(gpu(), random_floats(random, c.rows * c.experts));
    for (float& x : logits.host)  // ties
      if (random.below(3) == 0) x = 0.25f;
    if (how.score != ExpertScore::softmax && c.rows > 2) logits.host[5] = std::nanf("");
    logits.upload();
    const Twin<float> bias(gpu(), random_floats(random, c.experts)),
        scales(gpu(), random_floats(random, c.experts));
    const auto scales_of = [&](bool on_gpu) -> const float* {
      return !how.renormalised ? nullptr : on_gpu ? scales.device() : scales.host.data();
    };
    const auto route = [&](bool on_gpu) {
      return RouteParams{.how = how,
                         .logits = on_gpu ? logits.device() : logits.host.data(),
                         .stride = c.experts,
                         .bias = !c.bias  ? nullptr
                                 : on_gpu ? bias.device()
                                          : bias.host.data(),
                         .rows = c.rows,
                         .ids = on_gpu ? chosen.ids.device() : chosen.ids.host.data(),
                         .weights = on_gpu ? chosen.weights.device() : chosen.weights.host.data(),
                         .scales = scales_of(on_gpu)};
    };
    const auto sort = [&](bool on_gpu) {
      return SortRowsParams{
          .ids = on_gpu ? chosen.ids.device() : chosen.ids.host.data(),
          .expert_places = chosen.places_of(c, on_gpu),
          .rows = c.rows,
          .chosen = c.chosen,
          .experts = c.experts,
          .begin = on_gpu ? chosen.begin.device() : chosen.begin.host.data(),
          .place = on_gpu ? chosen.place.device() : chosen.place.host.data(),
          .rows_of = on_gpu ? chosen.rows_of.device() : chosen.rows_of.host.data()};
    };
    const ScopedFlushToZero flush;
    host.route(route(false), {});
    host.sort_rows(sort(false), {});
    device.route(route(true), on());
    device.sort_rows(sort(true), on());
    on().stream->wait();
    for (const Twin<int32_t>* twin : {&chosen.ids, &chosen.begin, &chosen.place, &chosen.rows_of})
      EXPECT_TRUE(twin->matches());
    EXPECT_TRUE(chosen.weights.matches());
    chosen.upload();
  }

  void check_products(Order order, const Case& c) {
    Random random(static_cast<uint64_t>(c.rows));
    Chosen chosen(gpu(), c);
    choose(random, c, {.experts = c.experts, .chosen = c.chosen}, chosen);
    const int64_t pairs = c.rows * c.chosen;
    const auto x = random_rows<bf16_t>(gpu(), random, c.rows, c.d);
    const int64_t stride = activation_stride(c.d), wide = activation_stride(c.f);
    Twin<bf16_t> sorted(gpu(), pairs * stride), gated(gpu(), pairs * wide);
    Twin<float> y(gpu(), pairs * c.d);
    MatrixStack gate_up(gpu(), random, order, c.f, c.d, c.experts, 2),
        down(gpu(), random, order, c.d, c.f, c.experts, 1);
    const Twin<float> f_bias(gpu(), random_floats(random, c.experts * c.f)),
        d_bias(gpu(), random_floats(random, c.experts * c.d));
    const auto bias = [&](const Twin<float>& of, bool on_gpu) -> const float* {
      return !c.bias ? nullptr : on_gpu ? of.device() : of.host.data();
    };
    const auto run = [&](const Kernels& k, bool on_gpu, const Execution& at) {
      const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
      const int32_t* begin = on_gpu ? chosen.begin.device() : chosen.begin.host.data();
      k.gather_rows(
          {.x = {on_gpu ? x.device() : const_cast<bf16_t*>(x.host.data()), DType::bf16, stride},
           .width = c.d,
           .rows_of = of(chosen.rows_of),
           .begin = begin,
           .experts = c.experts,
           .most_rows = pairs,
           .out = {of(sorted), DType::bf16, stride}},
          at);
      k.expert_gated_matmul({.each = {.x = {of(sorted), DType::bf16, stride},
                                      .gate_up = on_gpu ? gate_up.device : gate_up.host,
                                      .rows = pairs,
                                      .gate_bias = bias(f_bias, on_gpu),
                                      .up_bias = bias(f_bias, on_gpu),
                                      .out = {of(gated), DType::bf16, wide},
                                      .curve = c.bias ? Nonlinearity::clamped : Nonlinearity::silu},
                             .begin = begin,
                             .matmul = k.gated_matmul},
                            at);
      k.expert_matmul({.each = {.x = {of(gated), DType::bf16, wide},
                                .w = on_gpu ? down.device : down.host,
                                .rows = pairs,
                                .split_k = 1,
                                .bias = bias(d_bias, on_gpu),
                                .accumulate = false,
                                .y = of(y),
                                .y_stride = c.d},
                       .begin = begin,
                       .matmul = k.matmul},
                      at);
    };
    {
      const ScopedFlushToZero flush;
      run(cpu(order), false, {});
    }
    run(cuda::kernels(order), true, on());
    on().stream->wait();
    EXPECT_TRUE(gated.matches());
    EXPECT_TRUE(y.matches());
  }
};

TEST_F(ExpertsOnGpu, ChoicesAndSortedRows) {
  for (const Case& c : kCases)
    for (const ExpertScore score :
         {ExpertScore::softmax, ExpertScore::sigmoid, ExpertScore::softmax_of_chosen}) {
      SCOPED_TRACE(c.rows);
      Random random(static_cast<uint64_t>(c.rows) + 3);
      Chosen chosen(gpu(), c);
      Routing how{.experts = c.experts, .chosen = c.chosen, .score = score, .renormalised = c.bias};
      if (c.experts % 4 == 0 && c.chosen <= c.experts / 2) {
        how.groups = 4;
        how.chosen_groups = 2;
        how.pair_score = c.bias;
        how.scale = 2.5f;
        how.epsilon = 1e-20f;
      }
      choose(random, c, how, chosen);
    }
}

// The order and the rows of more pairs in one kernel, of all experts and of a rank's.
TEST_F(ExpertsOnGpu, SortedAndGatheredAtOnce) {
  for (const Case& c : kCases)
    for (const int32_t first : {0, 2}) {
      if (c.rows * c.chosen > kMostPairs || first >= c.experts) continue;
      SCOPED_TRACE(c.rows);
      Random random(static_cast<uint64_t>(c.rows) + 17);
      Chosen chosen(gpu(), c);
      choose(random, c, {.experts = c.experts, .chosen = c.chosen}, chosen);
      const auto x = random_rows<bf16_t>(gpu(), random, c.rows, c.d);
      const int64_t stride = activation_stride(c.d), pairs = c.rows * c.chosen;
      Twin<int32_t> begin(gpu(), c.experts + 1), place(gpu(), pairs), rows_of(gpu(), pairs);
      Twin<bf16_t> sorted(gpu(), pairs * stride);
      const auto params = [&](bool on_gpu) {
        const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
        return SortAndGatherParams{
            .sort = {.ids = of(chosen.ids),
                     .expert_places = chosen.places_of(c, on_gpu),
                     .rows = c.rows,
                     .chosen = c.chosen,
                     .experts = c.experts,
                     .begin = of(begin),
                     .place = of(place),
                     .rows_of = of(rows_of)},
            .gather = {.x = {on_gpu ? x.device() : const_cast<bf16_t*>(x.host.data()), DType::bf16,
                             stride},
                       .width = c.d,
                       .rows_of = of(rows_of),
                       .begin = of(begin) + first,
                       .experts = c.experts - first,
                       .most_rows = pairs,
                       .out = {of(sorted), DType::bf16, stride}}};
      };
      cpu(Order::portable).sort_rows(params(false).sort, {});
      cpu(Order::portable).gather_rows(params(false).gather, {});
      cuda::sort_and_gather(params(true), on());
      on().stream->wait();
      for (const Twin<int32_t>* twin : {&begin, &place, &rows_of}) EXPECT_TRUE(twin->matches());
      EXPECT_TRUE(sorted.matches());
    }
}

// The choice, the order and the rows in one kernel, of all experts and of a rank's.
TEST_F(ExpertsOnGpu, FewRowsAtOnce) {
  for (const Case& c : {Case{1, 8, 2, 64, 40},
                        {1, 128, 8, 2048, 768},
                        {3, 60, 4, 96, 33, true},
                        {40, 12, 3, 64, 80},
                        {16, 256, 8, 256, 64, true},
                        {128, 5, 1, 33, 8}})
    for (const int32_t first : {0, 3}) {
      SCOPED_TRACE(c.rows);
      Random random(static_cast<uint64_t>(c.rows) + 11);
      const Twin<float> logits(gpu(), random_floats(random, c.rows * c.experts)),
          bias(gpu(), random_floats(random, c.experts)),
          scales(gpu(), random_floats(random, c.experts));
      const auto x = random_rows<bf16_t>(gpu(), random, c.rows, c.d);
      const int64_t stride = activation_stride(c.d);
      Chosen chosen(gpu(), c);
      Twin<bf16_t> sorted(gpu(), c.rows * c.chosen * stride);
      const auto params = [&](bool on_gpu) {
        const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
        int32_t* begin = of(chosen.begin);
        const Routing how{.experts = c.experts, .chosen = c.chosen, .renormalised = c.bias};
        return ChooseExpertsParams{
            .route = {.how = how,
                      .logits = on_gpu ? logits.device() : logits.host.data(),
                      .stride = c.experts,
                      .bias = !c.bias  ? nullptr
                              : on_gpu ? bias.device()
                                       : bias.host.data(),
                      .rows = c.rows,
                      .ids = of(chosen.ids),
                      .weights = of(chosen.weights),
                      .scales = c.bias ? of(scales) : nullptr},
            .sort = {.ids = of(chosen.ids),
                     .expert_places = chosen.places_of(c, on_gpu),
                     .rows = c.rows,
                     .chosen = c.chosen,
                     .experts = c.experts,
                     .begin = begin,
                     .place = of(chosen.place),
                     .rows_of = of(chosen.rows_of)},
            .gather = {.x = {on_gpu ? x.device() : const_cast<bf16_t*>(x.host.data()), DType::bf16,
                             stride},
                       .width = c.d,
                       .rows_of = of(chosen.rows_of),
                       .begin = begin + first,
                       .experts = c.experts - first,
                       .most_rows = c.rows * c.chosen,
                       .out = {of(sorted), DType::bf16, stride}}};
      };
      const ChooseExpertsParams on_host = params(false);
      const Kernels host = cpu(Order::portable);
      {
        const ScopedFlushToZero flush;
        host.route(on_host.route, {});
        host.sort_rows(on_host.sort, {});
        host.gather_rows(on_host.gather, {});
      }
      cuda::kernels(Order::hopper).choose_experts(params(true), on());
      on().stream->wait();
      for (const Twin<int32_t>* twin : {&chosen.ids, &chosen.begin, &chosen.place, &chosen.rows_of})
        EXPECT_TRUE(twin->matches());
      EXPECT_TRUE(chosen.weights.matches());
      EXPECT_TRUE(sorted.matches());
    }
}

// From the residual stream to the rows that the experts read, at once where it can be and else one
// after the other.
TEST_F(ExpertsOnGpu, RoutedAtOnce) {
  struct Shape {
    Case of;
    int more = 0;  // outputs of the router that are no experts
  };
  for (const auto& [c, more] : {Shape{{1, 8, 2, 64, 0}},
                                {{1, 128, 8, 2048, 0}},
                                {{4, 128, 8, 2048, 0, true}},
                                {{3, 60, 4, 96, 0, true}, 1},
                                {{2, 256, 8, 1000, 0}},
                                {{2, 128, 6, 4096, 0}},
                                {{1, 12, 3, 2880, 0, true}},
                                {{3, 300, 8, 256, 0}},
                                {{5, 32, 4, 320, 0}},
                                {{1, 64, 4, 5120, 0}}})
    for (const int32_t first : {0, 3}) {
      SCOPED_TRACE(c.d);
      Random random(static_cast<uint64_t>(c.rows) + 29);
      const int64_t stride = activation_stride(c.d), n = c.experts + more;
      const Twin<float> hidden(gpu(), random_floats(random, c.rows * c.d)),
          norm(gpu(), random_floats(random, c.d)), n_bias(gpu(), random_floats(random, n)),
          bias(gpu(), random_floats(random, c.experts));
      MatrixStack router(gpu(), random, Order::hopper, n, c.d, 1, 1);
      Chosen chosen(gpu(), c);
      Twin<bf16_t> normed(gpu(), c.rows * stride), sorted(gpu(), c.rows * c.chosen * stride);
      Twin<float> logits(gpu(), c.rows * n);
      const auto params = [&](bool on_gpu) {
        const auto of = [&](auto& twin) {
          return on_gpu ? twin.device() : const_cast<decltype(twin.device())>(twin.host.data());
        };
        const Activation x = {of(normed), DType::bf16, stride};
        int32_t* begin = of(chosen.begin);
        return RouteExpertsParams{
            .norm = {.x = of(hidden),
                     .x_stride = c.d,
                     .rows_of = nullptr,
                     .weight = of(norm),
                     .eps = 1e-6f,
                     .rows = c.rows,
                     .width = c.d,
                     .out = x},
            .router = {.x = x,
                       .w = on_gpu ? router.device : router.host,
                       .rows = c.rows,
                       .split_k = 1,
                       .bias = c.bias ? of(n_bias) : nullptr,
                       .accumulate = false,
                       .y = of(logits),
                       .y_stride = n},
            .choose = {
                .route = {.how = {.experts = c.experts, .chosen = c.chosen, .renormalised = c.bias},
                          .logits = of(logits),
                          .stride = n,
                          .bias = c.bias ? of(bias) : nullptr,
                          .rows = c.rows,
                          .ids = of(chosen.ids),
                          .weights = of(chosen.weights)},
                .sort = {.ids = of(chosen.ids),
                         .expert_places = chosen.places_of(c, on_gpu),
                         .rows = c.rows,
                         .chosen = c.chosen,
                         .experts = c.experts,
                         .begin = begin,
                         .place = of(chosen.place),
                         .rows_of = of(chosen.rows_of)},
                .gather = {.x = x,
                           .width = c.d,
                           .rows_of = of(chosen.rows_of),
                           .begin = begin + first,
                           .experts = c.experts - first,
                           .most_rows = c.rows * c.chosen,
                           .out = {of(sorted), DType::bf16, stride}}}};
      };
      const RouteExpertsParams on_host = params(false);
      {
        const ScopedFlushToZero flush;
        const Kernels host = cpu(Order::hopper);
        host.rms_norm(on_host.norm, {});
        host.matmul(on_host.router, {});
        host.route(on_host.choose.route, {});
        host.sort_rows(on_host.choose.sort, {});
        host.gather_rows(on_host.choose.gather, {});
      }
      cuda::route_experts(params(true), on());
      on().stream->wait();
      for (const Twin<int32_t>* twin : {&chosen.ids, &chosen.begin, &chosen.place, &chosen.rows_of})
        EXPECT_TRUE(twin->matches());
      for (const Twin<float>* twin : {&logits, &chosen.weights}) EXPECT_TRUE(twin->matches());
      for (const Twin<bf16_t>* twin : {&normed, &sorted}) EXPECT_TRUE(twin->matches());
    }
}

TEST_F(ExpertsOnGpu, ProductsOfOrderHopper) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.rows);
    check_products(Order::hopper, c);
  }
}

TEST_F(ExpertsOnGpu, ProductsOfOrderPortable) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.rows);
    check_products(Order::portable, c);
  }
}

TEST_F(ExpertsOnGpu, Sums) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.rows);
    Random random(static_cast<uint64_t>(c.rows) + 7);
    Chosen chosen(gpu(), c);
    choose(random, c, {.experts = c.experts, .chosen = c.chosen}, chosen);
    const int64_t pairs = c.rows * c.chosen, stride = round_up(c.d, kLeafPad);
    const Twin<float> y(gpu(), random_floats(random, pairs * stride)),
        shared(gpu(), random_floats(random, c.rows * stride)),
        gate(gpu(), random_floats(random, c.rows));
    Twin<float> h(gpu(), random_floats(random, c.rows * c.d));
    const auto params = [&](bool on_gpu) {
      const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
      return CombineParams{.y = {const_cast<float*>(of(y)), DType::f32, stride},
                           .rounds = true,
                           .place = of(chosen.place),
                           .weights = of(chosen.weights),
                           .chosen = c.chosen,
                           .shared = c.bias ? of(shared) : nullptr,
                           .shared_stride = stride,
                           .gate = c.bias ? of(gate) : nullptr,
                           .gate_stride = 1,
                           .rows = c.rows,
                           .width = c.d,
                           .hidden = of(h),
                           .scale = c.bias ? 0.22f : 1.0f};
    };
    cuda::kernels(Order::hopper).combine(params(true), on());
    {
      const ScopedFlushToZero flush;
      cpu(Order::hopper).combine(params(false), {});
    }
    on().stream->wait();
    EXPECT_TRUE(h.matches());

    const Twin<float> norm(gpu(), random_floats(random, c.d));
    Twin<bf16_t> normed(gpu(), c.rows * activation_stride(c.d));
    for (const bool has_norm : {true, false}) {
      const auto with_norm = [&](bool on_gpu) {
        const float* weight = on_gpu ? norm.device() : norm.host.data();
        return CombineNormParams{.sum = params(on_gpu),
                                 .next = has_norm ? weight : nullptr,
                                 .eps = 1e-6f,
                                 .out = {on_gpu ? normed.device() : normed.host.data(), DType::bf16,
                                         activation_stride(c.d)}};
      };
      cuda::kernels(Order::hopper).combine_norm(with_norm(true), on());
      {
        const ScopedFlushToZero flush;
        select_kernels(Order::hopper, "scalar").combine_norm(with_norm(false), {});
      }
      on().stream->wait();
      EXPECT_TRUE(h.matches());
      EXPECT_TRUE(normed.matches());
    }
  }
}

}  // namespace
}  // namespace invar
