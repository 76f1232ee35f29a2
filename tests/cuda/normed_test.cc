// A norm of one row inside of the product that reads it, against one after the other.
#include <fmt/format.h>

#include "../kernels/random_blocks.h"
#include "cuda_check.h"
#include "kernels/at_once.h"

namespace invar {
namespace {

class NormedProducts : public CudaTest {
 protected:
  // Bytes that stand for finite weights: blocks and bf16 of random numbers, integers with scales.
  static std::vector<uint8_t> random_weights(Random& random, const Matrix& w) {
    if (storage_of(w.type).has_blocks()) {
      const TwoFormsOfAMatrix both(random, w.type, w.n, w.k, w.count, w.layout);
      return {both.stored_bytes.data(), both.stored_bytes.data() + w.bytes()};
    }
    std::vector<uint8_t> bytes(w.bytes());
    for (int64_t row = 0; row < w.all_rows() * w.count; ++row) {
      uint8_t* unit = bytes.data() + row * w.unit_bytes();
      for (int64_t i = 0; i < w.k; ++i)
        if (w.type == DType::bf16)
          reinterpret_cast<bf16_t*>(unit)[i] = f32_to_bf16(random.uniform());
        else
          unit[i] = static_cast<uint8_t>(random.next() % 255 - 127);
      if (w.type == DType::i8) {
        const float scale = 0.001f * (1 + row % 7);
        std::memcpy(unit + w.scales_at(), &scale, sizeof(scale));
      }
    }
    return bytes;
  }

  void check(DType type, int64_t k, int64_t n, int count) {
    const std::string what = fmt::format("{} k {} n {} x {}", name_of(type), k, n, count);
    Random random(k * 31 + n);
    const Kernels kernels = cuda::kernels(Order::hopper);
    const AtOnce at_once = invar::at_once(kernels);
    Matrix w{.type = type, .n = n, .k = k, .layout = kernels.weights, .count = count};
    ASSERT_TRUE(at_once.norms_row(w, on())) << what;
    const auto bytes = random_weights(random, w);
    const DeviceArray<uint8_t> weights(gpu(), bytes.size(), "a test");
    gpu().upload(weights.data(), bytes.data(), bytes.size());
    w.data = weights.data();
    Twin<float> x(gpu(), random_floats(random, k)), scale(gpu(), random_floats(random, k));
    const DeviceArray<std::byte> scratch(gpu(), kernels.blocks_scratch, "a test");
    const Twin<bf16_t> row(gpu(), activation_stride(k));
    const Activation normed{row.device(), DType::bf16, activation_stride(k)};
    const RmsNormParams norm{.x = x.device(),
                             .x_stride = k,
                             .rows_of = nullptr,
                             .weight = scale.device(),
                             .eps = 1e-6f,
                             .rows = 1,
                             .width = k,
                             .out = normed};
    const int64_t stride = round_up(n, kLeafPad);
    const auto result = [&](bool together) {
      const Twin<float> y(gpu(), n);
      const Twin<bf16_t> gated(gpu(), stride);
      const MatmulParams p{.x = normed,
                           .w = w,
                           .rows = 1,
                           .split_k = 1,
                           .bias = nullptr,
                           .accumulate = false,
                           .y = y.device(),
                           .y_stride = n,
                           .scratch = scratch.data()};
      const GatedMatmulParams g{.x = normed,
                                .gate_up = w,
                                .rows = 1,
                                .gate_bias = nullptr,
                                .up_bias = nullptr,
                                .out = {gated.device(), DType::bf16, stride},
                                .scratch = scratch.data()};
      const bool is_integer = type == DType::i8;
      if (!together) kernels.rms_norm(norm, on());
      if (together && count == 1)
        at_once.normed_matmul({norm, p}, on());
      else if (together)
        at_once.normed_gated_matmul({norm, g}, on());
      else if (count == 1)
        (is_integer ? kernels.int8_matmul : kernels.matmul)(p, on());
      else
        (is_integer ? kernels.int8_gated_matmul : kernels.gated_matmul)(g, on());
      std::vector<float> all = y.download();
      for (const bf16_t v : gated.download()) all.push_back(bf16_to_f32(v));
      return all;
    };
    const auto apart = result(false), together = result(true);
    EXPECT_TRUE(same_bits(apart, together)) << what;
    scale.host[k - 1] += 1;  // the control
    scale.upload();
    EXPECT_FALSE(same_bits(apart, result(true))) << what;
  }
};

TEST_F(NormedProducts, HaveTheBitsOfBothInTurn) {
  std::vector<DType> types = block_types();
  std::erase(types, DType::mxfp4);
  types.push_back(DType::bf16);
  types.push_back(DType::i8);
  for (const DType type : types)
    for (const int count : {1, 2}) {
      if (type == DType::q8_0 || !storage_of(type).has_blocks()) check(type, 4096, 3400, count);
      check(type, 1024, 1000, count);
      check(type, 256, 40, count);
    }
}

}  // namespace
}  // namespace invar
