// Caches in 8 bits and products of integers on a GPU: kernels against the definition, and models
// against the CPU's, in both orders.
#include <fmt/format.h>

#include "../model/schedules.h"
#include "../weights/model_files.h"
#include "cuda_check.h"
#include "kernels/cuda/operations.h"
#include "kernels/reference/reference.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/families/quantised_checkpoint.h"

namespace invar {
namespace {

using namespace testing_model;

class LowBitOnGpu : public CudaTest {
 protected:
  static RunnerLimits limits() { return {.blocks = 64, .max_rows = 512, .max_logit_rows = 512}; }
  static std::vector<Digests> hashes(const ModelOptions& options, int first_token = 0) {
    Model model(options);
    Executor runner(model, limits());
    auto sequences = std::vector<Tokens>{random_tokens(300, 512, 1), random_tokens(33, 512, 2),
                                         random_tokens(1, 512, 4)};
    sequences[0][0] ^= first_token;
    return random_schedule(runner, sequences, 7, 100);
  }
  // The hashes of the CPU on one rank and on two, in both orders, and others for another text.
  static void expect_the_cpus(ModelOptions options, const std::string& what,
                              const std::vector<std::string>& orders = {"portable", "hopper"}) {
    for (const std::string& order : orders) {
      options.arithmetic = order;
      options.device = "cpu";
      options.ranks = 1;
      const auto expected = hashes(options);
      options.device = "cuda";
      for (const int ranks : {1, 2}) {
        options.ranks = ranks;
        EXPECT_EQ(hashes(options), expected) << what << " " << order << " " << ranks << " ranks";
      }
      EXPECT_NE(hashes(options, 1)[0], expected[0]) << what << " " << order;
    }
  }
};

struct Case {
  CacheType type;
  CacheLayout layout;
  int block_size, kv_heads, head_dim, window;
};

constexpr Case kCases[] = {{CacheType::int8, CacheLayout::panels, 32, 2, 40, 0},
                           {CacheType::int8, CacheLayout::rows, 64, 3, 64, 50},
                           {CacheType::int8, CacheLayout::rows, 128, 1, 128, 0},
                           {CacheType::fp8_e4m3, CacheLayout::rows, 64, 2, 8, 0},
                           {CacheType::fp8_e4m3, CacheLayout::panels, 32, 1, 256, 40}};
constexpr int kBlocks = 7;

// A cache and what a step writes and reads of it, on one side.
struct Side {
  KvLayer kv;
  const int32_t *write_begin, *write_block, *write_slot, *positions, *table_of;
  const int32_t* const* tables;
  const SlotCopy* copies;
};

TEST_F(LowBitOnGpu, SlotsAreStoredLoadedAndCopiedAsTheDefinition) {
  for (const Case& c : kCases) {
    const std::string what = fmt::format("{} E {}", name_of(c.type), c.head_dim);
    KvLayer kv{.block_size = c.block_size,
               .kv_heads = c.kv_heads,
               .head_dim = c.head_dim,
               .layout = c.layout};
    kv.stored = {nullptr, c.type, c.block_size, c.kv_heads, c.head_dim};
    Random random(c.head_dim);
    std::vector<int32_t> begin, block, slot;
    for (int i = 0; i < kBlocks * c.block_size; ++i) {
      begin.push_back(i);
      block.push_back(i / c.block_size);
      slot.push_back(i % c.block_size);
    }
    const auto rows = std::ssize(begin);
    begin.push_back(static_cast<int32_t>(rows));
    Twin<bf16_t> keys(gpu(), kBlocks * c.kv_heads * kv.key_block()),
        values(gpu(), kBlocks * c.kv_heads * kv.value_block());
    for (auto* all : {&keys.host, &values.host})
      for (bf16_t& x : *all)
        x = f32_to_bf16(std::ldexp(random.uniform(), static_cast<int>(random.below(12)) - 6));
    keys.upload();
    values.upload();
    Twin<uint8_t> stored(gpu(), kBlocks * kv.stored.block_bytes());
    const int32_t last = 4 * c.block_size + 5;
    const Twin<int32_t> write_begin(gpu(), begin), write_block(gpu(), block),
        write_slot(gpu(), slot), positions(gpu(), {last - 1, last, 40}), table_of(gpu(), {0, 0, 1}),
        first(gpu(), {4, 0, 3, 1, 6}), second(gpu(), {4, 2, 5});
    const Twin<const int32_t*> tables(gpu(),
                                      std::vector<const int32_t*>{first.device(), second.device()});
    const int32_t* const host_tables[] = {first.host.data(), second.host.data()};
    const Twin<SlotCopy> copies(gpu(), std::vector<SlotCopy>{{1, 5, 3, 9}, {0, 6, 0, 1}});
    const auto run = [&](const Kernels& kernels, const Side& side, const Execution& at) {
      kernels.store_slots({side.kv, rows, side.write_begin, side.write_block, side.write_slot}, at);
      kernels.load_slots({side.kv, 3, c.window, side.positions, side.table_of, side.tables}, at);
      kernels.copy_stored({side.kv, side.copies, 2}, at);
    };
    Side host{kv,          begin.data(),          block.data(),
              slot.data(), positions.host.data(), table_of.host.data(),
              host_tables, copies.host.data()};
    Side device{kv,
                write_begin.device(),
                write_block.device(),
                write_slot.device(),
                positions.device(),
                table_of.device(),
                tables.device(),
                copies.device()};
    host.kv.keys = keys.host.data(), host.kv.values = values.host.data();
    host.kv.stored.data = stored.host.data();
    device.kv.keys = keys.device(), device.kv.values = values.device();
    device.kv.stored.data = stored.device();
    Kernels definition{};
    definition.store_slots = reference::store_slots;
    definition.load_slots = reference::load_slots;
    definition.copy_stored = reference::copy_stored;
    run_in_parts(1, [&](const Execution& at) { run(definition, host, at); });
    Kernels kernels = cuda::kernels(Order::hopper);
    kernels.load_slots = cuda::load_slots;
    run(kernels, device, on());
    EXPECT_TRUE(stored.matches()) << what;
    EXPECT_TRUE(keys.matches()) << what;
    EXPECT_TRUE(values.matches()) << what;
    stored.host[5] ^= 1;  // the control
    EXPECT_FALSE(stored.matches()) << what;
  }
}

TEST_F(LowBitOnGpu, CachesIn8BitsHaveTheCpusHashes) {
  for (const char* type : {"int8", "fp8_e4m3"})
    expect_the_cpus({.model = "tiny", .load_format = "dummy:7", .kv_cache_dtype = type}, type);
}

TEST_F(LowBitOnGpu, ProductsOfIntegersHaveTheCpusHashes) {
  const TempDirectory files;
  ThreadPool pool(2);
  make_model(files / "bf16", {.spec = preset_spec("tiny")}, 7, pool);
  write_w8a8(files / "bf16", files / "int8", pool);
  expect_the_cpus({.model = files / "int8"}, "int8");
  expect_the_cpus({.model = files / "int8", .kv_cache_dtype = "int8"}, "int8, cache int8");
}

TEST_F(LowBitOnGpu, ProductsOfE4m3NumbersHaveTheCpusHashes) {
  const TempDirectory files;
  ThreadPool pool(2);
  make_model(files / "bf16", {.spec = preset_spec("tiny")}, 7, pool);
  write_fp8(files / "bf16", files / "fp8", pool);
  expect_the_cpus({.model = files / "fp8", .weights = "fp8"}, "fp8", {"hopper"});
}

TEST_F(LowBitOnGpu, ProductsOfE4m3NumbersByRowsHaveTheCpusHashes) {
  const TempDirectory files;
  ThreadPool pool(2);
  make_model(files / "bf16", {.spec = preset_spec("tiny")}, 7, pool);
  expect_the_cpus({.model = files / "bf16", .weights = "fp8-row"}, "fp8-row", {"hopper"});
}

}  // namespace
}  // namespace invar
