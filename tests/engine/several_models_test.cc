// Several models on one block pool, as a target and its drafter: one block table, a storage for
// each.
#include <gtest/gtest.h>

#include "engine/executor.h"
#include "kv/block_pool.h"
#include "kv/block_table.h"
#include "numerics/logits_hash.h"

namespace invar {
namespace {

constexpr int kSlots = 32, kBlocks = 12;

ModelOptions options(const char* load_format) {
  return {.model = "tiny", .load_format = load_format, .threads = 2};
}

// Hash of the logits after every token of a sequence, `chunk` rows a step.
class Reader {
 public:
  Reader(Model& model, std::vector<int32_t> tokens)
      : runner_(model, {.blocks = kBlocks, .block_size = kSlots}), tokens_(std::move(tokens)) {}

  void step(std::span<const int32_t> blocks, int rows) {
    Batch batch;
    batch.sequences.push_back({{blocks.begin(), blocks.end()}});
    for (int i = 0; i < rows; ++i, ++done_) {
      batch.logit_rows.push_back(i);
      batch.rows.push_back({tokens_[done_], done_, 0});
    }
    ForwardIo io;
    runner_.run(batch, io);
    const size_t vocab = runner_.model().spec().vocab;
    for (int i = 0; i < rows; ++i) hash_.add(hasher_(io.logits.subspan(i * vocab, vocab)));
  }
  const Digest& hash() const { return hash_.value(); }

 private:
  Executor runner_;
  std::vector<int32_t> tokens_;
  int done_ = 0;
  PositionHasher hasher_;
  LogitsHash hash_;
};

std::vector<int32_t> tokens(int count) {
  std::vector<int32_t> all;
  for (int i = 0; i < count; ++i) all.push_back(i * 31 % 500);
  return all;
}

TEST(SeveralModels, ShareOnePoolAndOneTableAndDoNotMeet) {
  Model target(options("dummy:1")), drafter(options("dummy:2"));
  BlockPool pool(kBlocks, kSlots);
  BlockTable table(pool);
  Reader together[2] = {{target, tokens(90)}, {drafter, tokens(90)}};
  for (int done = 0; done < 90; done += 15) {
    ASSERT_TRUE(table.grow(done + 15));
    for (Reader& reader : together) reader.step(table.blocks(), 15);
  }
  EXPECT_EQ(pool.check_integrity(), "");

  Model* models[] = {&target, &drafter};
  for (int m = 0; m < 2; ++m) {
    Reader alone(*models[m], tokens(90));
    const int32_t blocks[] = {7, 2, 5};
    for (int done = 0; done < 90; done += 30) alone.step(blocks, 30);
    EXPECT_EQ(alone.hash(), together[m].hash());
  }
  EXPECT_NE(together[0].hash(), together[1].hash());  // the control: they are two models
}

}  // namespace
}  // namespace invar
