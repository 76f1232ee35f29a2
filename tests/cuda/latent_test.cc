// Latent attention's operations, of both orders, against the scalar definition.
#include "kernels/reference/reference.h"
#include "kernels/select.h"
#include "matrix_stack.h"

namespace invar {
namespace {

class LatentOnGpu : public CudaTest {
 protected:
  struct Case {
    int64_t rows, heads, n, k, x_step;  // of a head's outputs, its elements, and between heads'
  };

  // Whether the GPU's products are the definition's. `spoiled`: one weight of the GPU's is another.
  ::testing::AssertionResult products_match(Order order, const Case& c, bool spoiled = false) {
    Random random(static_cast<uint64_t>(c.rows + c.n));
    const int64_t width = (c.heads - 1) * c.x_step + c.k, stride = activation_stride(width);
    const auto x = random_rows<bf16_t>(gpu(), random, c.rows, width);
    MatrixStack w(gpu(), random, order, c.n, c.k, c.heads, 1);
    if (spoiled) {
      w.rows.host[0] = static_cast<bf16_t>(w.rows.host[0] ^ 0x4000);
      w.rows.upload();
    }
    Twin<float> y(gpu(), c.rows * c.heads * c.n);
    const auto run = [&](const Kernels& k, bool on_gpu, const Execution& at) {
      k.heads_matmul({.each = {.x = {on_gpu ? x.device() : const_cast<bf16_t*>(x.host.data()),
                                     DType::bf16, stride},
                               .w = on_gpu ? w.device : w.host,
                               .rows = c.rows,
                               .split_k = 1,
                               .bias = nullptr,
                               .accumulate = false,
                               .y = on_gpu ? y.device() : y.host.data(),
                               .y_stride = c.heads * c.n},
                      .x_step = c.x_step,
                      .matmul = k.matmul},
                     at);
    };
    {
      const ScopedFlushToZero flush;
      run(select_kernels(order, "scalar"), false, {});
    }
    run(cuda::kernels(order), true, on());
    on().stream->wait();
    return y.matches();
  }
};

constexpr std::array kOrders = {Order::portable, Order::hopper};

// Queries times key matrices (whole rows), attention's outputs times value matrices (a part of
// what stands there), a width that fills no tile.
TEST_F(LatentOnGpu, HeadsProducts) {
  for (const Order order : kOrders)
    for (const int64_t rows : {1, 3, 17, 70, 150}) {
      EXPECT_TRUE(products_match(order, {rows, 4, 512, 128, 128})) << rows;
      EXPECT_TRUE(products_match(order, {rows, 3, 128, 512, 576})) << rows;
      EXPECT_TRUE(products_match(order, {rows, 5, 20, 32, 48})) << rows;
    }
  EXPECT_FALSE(products_match(Order::portable, {3, 2, 64, 32, 32}, true));
  EXPECT_FALSE(products_match(Order::hopper, {3, 2, 64, 32, 32}, true));
}

TEST_F(LatentOnGpu, PlacesLatents) {
  for (const auto& [rows, heads, rank, turning] :
       {std::array<int64_t, 4>{1, 16, 512, 64}, {7, 3, 32, 16}, {40, 2, 64, 64}}) {
    Random random(static_cast<uint64_t>(rows));
    const int64_t e = rank + turning;
    const Twin<float> queries(gpu(), random_floats(random, rows * heads * rank)),
        turning_queries(gpu(), random_floats(random, rows * (heads * turning + 5))),
        latents(gpu(), random_floats(random, rows * (e + 3)));
    Twin<float> out(gpu(), rows * (heads + 2) * e);
    const auto params = [&](bool on_gpu) {
      const auto of = [&](auto& twin) { return on_gpu ? twin.device() : twin.host.data(); };
      return PlaceLatentParams{.queries = of(queries),
                               .turning_queries = of(turning_queries),
                               .turning_stride = heads * turning + 5,
                               .latents = of(latents),
                               .latent_stride = e + 3,
                               .rows = rows,
                               .heads = heads,
                               .rank = rank,
                               .turning = turning,
                               .out = of(out)};
    };
    reference::place_latent(params(false), {});
    cuda::kernels(Order::hopper).place_latent(params(true), on());
    on().stream->wait();
    EXPECT_TRUE(out.matches());
  }
}

}  // namespace
}  // namespace invar
