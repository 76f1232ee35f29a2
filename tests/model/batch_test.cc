#include "model/batch.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/fields.h"

namespace invar {
namespace {

Batch random_batch(std::mt19937& random) {
  Batch batch;
  for (int s = 0; s < static_cast<int>(random() % 4); ++s) {
    BatchSequence sequence;
    for (int i = random() % 5; i >= 0; --i) sequence.blocks.push_back(random() % 1000);
    batch.sequences.push_back(sequence);
    const int start = random() % 50;
    for (int i = random() % 4; i >= 0; --i) batch.rows.push_back({7, start, s, -1});
    for (int i = random() % 4; i > 0; --i)
      batch.rows.push_back({int(random() % 100), batch.rows.back().position + 1, s,
                            static_cast<int32_t>(batch.rows.size()) - 1});
  }
  for (int t = 0; t < std::ssize(batch.rows); ++t)
    if (random() % 2) batch.logit_rows.push_back(t);
  for (int i = 0; i < 4; ++i)
    if (random() % 2) batch.aux_layers.push_back(i);
  for (int i = random() % 4; i > 0; --i) batch.scratch_blocks.push_back(random() % 100);
  for (BatchRow& row : batch.rows) {
    row.rotation_offset = random() % 3;
    if (random() % 2) row.features = static_cast<int32_t>(batch.features.size());
    batch.features.push_back(0.5f * static_cast<float>(random() % 9));
  }
  batch.fuses_features = random() % 2;
  batch.layer_begin = random() % 3;
  batch.layer_end = random() % 2 ? -1 : batch.layer_begin + random() % 5;
  return batch;
}

TEST(Batch, ThroughBytesAndBack) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const Batch batch = random_batch(random);
    EXPECT_EQ(from_bytes<Batch>(to_bytes(batch), "a batch"), batch);
  }
}

TEST(Batch, MalformedBytesAreRefused) {
  std::mt19937 random(2);
  int refused = 0, read = 0;
  for (int i = 0; i < 50; ++i) {
    const std::string bytes = to_bytes(random_batch(random));
    for (size_t n = 0; n < bytes.size(); ++n)
      EXPECT_THROW(from_bytes<Batch>(std::string_view(bytes).substr(0, n), "a batch"), Error);
    EXPECT_THROW(from_bytes<Batch>(bytes + '\0', "a batch"), Error);
    for (int k = 0; k < 300; ++k) {  // anything else is refused or is a batch
      std::string broken = bytes;
      broken[random() % broken.size()] = static_cast<char>(random());
      try {
        from_bytes<Batch>(broken, "a batch");
        ++read;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 100);
}

TEST(Batch, ImpossibleContentsAreRefused) {
  Batch good;
  good.rows = {{1, 4, 0, -1}, {2, 5, 0, 0}};
  good.sequences = {{{3}}};
  good.logit_rows = {0, 1};
  EXPECT_NO_THROW(from_bytes<Batch>(to_bytes(good), "a batch"));
  const auto refuses = [&](auto change) {
    Batch bad = good;
    change(bad);
    EXPECT_THROW(from_bytes<Batch>(to_bytes(bad), "a batch"), Error);
  };
  refuses([](Batch& b) { b.rows[1].parent = 1; });
  refuses([](Batch& b) { b.rows[1].parent = -2; });
  refuses([](Batch& b) { b.rows[1].position = 6; });
  refuses([](Batch& b) { b.rows[0].token = -1; });
  refuses([](Batch& b) { b.rows[0].sequence = 1; });
  refuses([](Batch& b) { b.rows[0].features = 0; });
  refuses([](Batch& b) { b.rows[0].features = -2, b.features = {1}; });
  refuses([](Batch& b) { b.rows[0].rotation_offset = -5; });
  refuses([](Batch& b) { b.sequences[0].blocks[0] = -1; });
  refuses([](Batch& b) { b.logit_rows = {1, 0}; });
  refuses([](Batch& b) { b.logit_rows = {2}; });
  refuses([](Batch& b) { b.aux_layers = {-1}; });
  refuses([](Batch& b) { b.scratch_blocks = {-1}; });
  refuses([](Batch& b) { b.layer_begin = 3, b.layer_end = 2; });
}

}  // namespace
}  // namespace invar
