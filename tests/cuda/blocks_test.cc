// What is stored in blocks on a GPU against the bf16 tensor that it stands for.
#include "kernels/cuda/blocks.h"

#include <fmt/format.h>

#include "../kernels/random_blocks.h"
#include "../model/schedules.h"
#include "../weights/blocks_source.h"
#include "../weights/model_files.h"
#include "cuda_check.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"

namespace invar {
namespace {

using namespace testing_model;

// A matrix, or a stack, in both forms on the GPU.
struct OnGpu {
  OnGpu(Device& gpu, const TwoFormsOfAMatrix& w)
      : stored(w.stored),
        twin(w.twin),
        stored_bytes(gpu, w.stored.bytes(), "a test"),
        twin_elements(gpu, w.twin.elements(), "a test") {
    gpu.upload(stored_bytes.data(), w.stored_bytes.data(), w.stored.bytes());
    gpu.upload(twin_elements.data(), w.twin_elements.data(), w.twin.bytes());
    stored.data = stored_bytes.data();
    twin.data = twin_elements.data();
  }

  Matrix stored, twin;
  DeviceArray<uint8_t> stored_bytes;
  DeviceArray<bf16_t> twin_elements;
};

struct Case {
  int64_t rows, n, k;
  int split_k = 1;
};

// The last ones need several parts of the scratch memory: they are made of two types only.
constexpr int64_t kLarge = 1 << 22;
constexpr Case kCases[] = {
    {1, 16, 256},    {3, 100, 512},     {8, 300, 2048, 8},   {33, 144, 512, 4}, {65, 272, 256, 2},
    {130, 40, 1024}, {1, 272, 2048, 8}, {16, 48, 1280},      {30, 80, 512, 2},  {64, 24, 768},
    {257, 389, 768}, {5, 2500, 16384},  {70, 2500, 16384, 8}};

// A GPU has experts as elements, and so no blocks of theirs.
std::vector<DType> types() {
  std::vector<DType> all = block_types();
  std::erase(all, DType::mxfp4);
  return all;
}

class BlocksOnGpu : public CudaTest {
 protected:
  Twin<bf16_t> random_rows(Random& random, const Case& c) {
    Twin<bf16_t> x(gpu(), c.rows * activation_stride(c.k));
    for (bf16_t& v : x.host) v = f32_to_bf16(random.uniform());
    x.upload();
    return x;
  }

  void check(Order order, DType type, const Case& c) {
    Random random(c.rows * 7919 + c.n * 31 + c.k);
    const Kernels kernels = cuda::kernels(order);
    const DeviceArray<std::byte> scratch(gpu(), kernels.blocks_scratch, "a test");
    const Twin<bf16_t> x = random_rows(random, c);
    const Activation rows{x.device(), DType::bf16, activation_stride(c.k)};
    const std::string what = fmt::format("{} {}: rows {} n {} k {} runs {}", name_of(order),
                                         name_of(type), c.rows, c.n, c.k, c.split_k);

    const TwoFormsOfAMatrix host(random, type, c.n, c.k, 1, kernels.weights);
    const OnGpu w(gpu(), host);
    const auto product = [&](const Matrix& matrix) {
      const Twin<float> y(gpu(), c.rows * c.n);
      kernels.matmul({.x = rows,
                      .w = matrix,
                      .rows = c.rows,
                      .split_k = c.split_k,
                      .bias = nullptr,
                      .accumulate = false,
                      .y = y.device(),
                      .y_stride = c.n,
                      .scratch = scratch.data()},
                     on());
      return y.download();
    };
    const auto expected = product(w.twin);
    EXPECT_TRUE(same_bits(expected, product(w.stored))) << what;
    // The control: the first unit's scales, f16 numbers among them, are others.
    for (int64_t i = host.stored.scales_at(); i < host.stored.unit_bytes(); ++i)
      host.stored_bytes[i] ^= 0x04;
    gpu().upload(w.stored_bytes.data(), host.stored_bytes.data(), host.stored.bytes());
    EXPECT_FALSE(same_bits(expected, product(w.stored))) << what;
    if (c.split_k > 1) return;

    const OnGpu pair(gpu(), TwoFormsOfAMatrix(random, type, c.n, c.k, 2, kernels.weights));
    const auto gated = [&](const Matrix& matrix) {
      const Twin<bf16_t> out(gpu(), c.rows * activation_stride(c.n));
      kernels.gated_matmul({.x = rows,
                            .gate_up = matrix,
                            .rows = c.rows,
                            .gate_bias = nullptr,
                            .up_bias = nullptr,
                            .out = {out.device(), DType::bf16, activation_stride(c.n)},
                            .scratch = scratch.data()},
                           on());
      return out.download();
    };
    EXPECT_TRUE(same_bits(gated(pair.twin), gated(pair.stored))) << what;
  }
};

TEST_F(BlocksOnGpu, Products) {
  for (const Order order : {Order::portable, Order::hopper})
    for (const DType type : types())
      for (const Case& c : kCases)
        if (c.n * c.k < kLarge || type == DType::q8_0 || type == DType::q4_k) check(order, type, c);
}

TEST_F(BlocksOnGpu, Embed) {
  const Twin<int32_t> tokens(gpu(), std::vector<int32_t>{0, 49, 7, 7, 33});
  for (const DType type : types())
    for (const WeightLayout layout : {WeightLayout::rows, WeightLayout::panels}) {
      Random random(1);
      const TwoFormsOfAMatrix host(random, type, 50, 768, 1, layout);
      const OnGpu w(gpu(), host);
      Twin<float> out(gpu(), 5 * 768);
      EmbedParams p{tokens.host.data(), host.twin, 5, out.host.data()};
      run_in_parts(1, [&](const Execution& on) { cpu(Order::portable).embed(p, on); });
      p = {tokens.device(), w.stored, 5, out.device()};
      cuda::kernels(Order::portable).embed(p, on());
      EXPECT_TRUE(out.matches()) << name_of(type);
    }
}

TEST_F(BlocksOnGpu, AModelHasTheBitsOfItsTwin) {
  const TempDirectory files;
  ThreadPool pool(2);
  const auto write = [&](const std::string& name, const Form& form) {
    const DecoderSpec spec = preset_spec("tiny");
    write_checkpoint(files / name, InBlocks(dummy_weights(spec, 7), form), pool);
    write_model_texts(files / name, {.spec = spec}, {});
    return ModelOptions{.model = files / name};
  };
  const auto hashes = [](const ModelOptions& options) {
    Model model(options);
    Executor runner(model, {.blocks = 64, .max_rows = 512, .max_logit_rows = 512});
    return random_schedule(runner, {random_tokens(150, 512, 1), random_tokens(40, 512, 2)}, 7, 100);
  };
  ModelOptions twin = write("twin", {.is_stored = false}), stored = write("stored", {});
  ModelOptions changed = write("changed", {.changed = "model.layers.1.mlp.down_proj.weight"});
  stored.device = changed.device = "cuda";
  for (const char* order : {"portable", "hopper"}) {
    twin.arithmetic = stored.arithmetic = changed.arithmetic = order;
    const auto expected = hashes(twin);
    for (const int ranks : {1, 2}) {
      stored.ranks = ranks;
      EXPECT_EQ(hashes(stored), expected) << order << " " << ranks << " ranks";
    }
    EXPECT_NE(hashes(changed), expected) << order;
  }
}

}  // namespace
}  // namespace invar
