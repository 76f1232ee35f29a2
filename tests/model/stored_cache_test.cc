// A cache in 8 bits: one answer for every schedule, block size, set, number of threads, ranks and
// stages, in both orders, and of draft trees.
#include <gtest/gtest.h>

#include "../weights/model_files.h"
#include "kernels/select.h"
#include "schedules.h"

namespace invar {
namespace {

using namespace testing_model;

constexpr int kVocab = 512;
constexpr const char* kTypes[] = {"int8", "fp8_e4m3"};

ModelOptions tiny(const char* type) {
  return {.model = "tiny", .load_format = "dummy:7", .kv_cache_dtype = type, .threads = 2};
}

RunnerLimits limits(int block_size = 64) {
  return {.blocks = 64, .block_size = block_size, .max_rows = 512, .max_logit_rows = 512};
}

std::vector<Tokens> sequences() {
  return {random_tokens(150, kVocab, 1), random_tokens(33, kVocab, 2), random_tokens(1, kVocab, 4)};
}

std::vector<Digests> plain(const ModelOptions& options, int block_size = 64) {
  Model model(options);
  Executor runner(model, limits(block_size));
  return one_by_one(runner, sequences());
}

TEST(StoredCache, SchedulesAndBlockSizesDoNotShow) {
  for (const char* type : kTypes)
    for (const char* order : {"portable", "hopper"}) {
      ModelOptions options = tiny(type);
      options.arithmetic = order;
      Model model(options);
      EXPECT_TRUE(model.identity().ends_with(std::string("/kv-") + type)) << model.identity();
      Executor runner(model, limits());
      const auto expected = one_by_one(runner, sequences());
      for (const int max_chunk : {7, 40, 150})
        EXPECT_EQ(random_schedule(runner, sequences(), 10 + max_chunk, max_chunk), expected)
            << type << " " << order << " " << max_chunk;
      EXPECT_EQ(plain(options, 32), expected) << type;
      auto other = sequences();  // the controls
      other[0][20] ^= 1;
      EXPECT_NE(random_schedule(runner, other, 5, 40)[0], expected[0]) << type;
      options.kv_cache_dtype = "auto";
      EXPECT_NE(plain(options), expected) << type;
    }
}

TEST(StoredCache, SetsThreadsRanksAndStagesDoNotShow) {
  for (const char* type : kTypes) {
    ModelOptions options = tiny(type);
    options.instruction_set = "scalar";
    const auto expected = plain(options);
    for (const std::string& set : instruction_sets()) {
      options.instruction_set = set;
      if (!is_supported(set)) continue;
      EXPECT_EQ(plain(options), expected) << type << " " << set;
    }
    options = tiny(type);
    for (const int threads : {1, 4}) {
      options.threads = threads;
      EXPECT_EQ(plain(options), expected) << type << " " << threads << " threads";
    }
    options.ranks = 2;
    options.layer_cuts = {1};
    EXPECT_EQ(plain(options), expected) << type << " in ranks and stages";
  }
}

TEST(StoredCache, TreeNodesEqualPlainDecodingOfTheirPaths) {
  PositionHasher hash;
  for (const char* type : kTypes) {
    Model model(tiny(type));
    Executor runner(model, limits(32));
    const int base = 63;
    const Tokens prefix = random_tokens(base, kVocab, 41);
    const Tree tree = random_tree(base, 6, 5, kVocab, 3);
    Stepper(runner, {prefix}).step({{0, base}});
    std::vector<Digest> expected;
    for (const Tokens& path : tree.path) {
      Tokens whole = prefix;
      whole.insert(whole.end(), path.begin(), path.end());
      Stepper stepper(runner, {whole});
      stepper.skip(0, base);  // its blocks hold the prefix already
      stepper.step({{0, static_cast<int>(path.size())}});
      expected.push_back(stepper.digests()[0].back());
    }
    ForwardIo io;
    runner.run(batch_of(tree, base, 32), io);
    for (size_t i = 0; i < tree.rows.size(); ++i)
      EXPECT_EQ(hash(io.logits.subspan(i * kVocab, kVocab)), expected[i]) << type << " node " << i;
    EXPECT_NE(expected[0], expected[1]);
  }
}

TEST(StoredCache, IsHalfTheMemoryAndRefusedWhereItIsNotImplemented) {
  const std::vector<StateShape> layers(36, {.kv_heads = 8, .head_dim = 128});
  const auto bytes = [&](CacheType type) { return SequenceStore::block_bytes(layers, 64, type); };
  EXPECT_LT(bytes(CacheType::int8) * 100, bytes(CacheType::bf16) * 56);
  EXPECT_LT(bytes(CacheType::fp8_e4m3) * 100, bytes(CacheType::bf16) * 54);
  ModelOptions options = tiny("int4");
  expect_message(error_of([&] { Model model(options); }), "expected a kv-cache-dtype of");
  options = tiny("int8");
  options.arithmetic = "control";
  expect_message(error_of([&] { Model model(options); }), "control has keys and values of bf16");
}

}  // namespace
}  // namespace invar
