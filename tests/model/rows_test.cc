// Rows that begin with features in place of a token's embedding, and rows whose rotation is not
// their slot's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "schedules.h"

namespace invar {
namespace {

using namespace testing_model;

constexpr int kRows = 50, kVocab = 512;

ModelOptions tiny(int ranks = 1, std::vector<int> layer_cuts = {}) {
  return {.model = "tiny",
          .load_format = "dummy:7",
          .threads = 2,
          .ranks = ranks,
          .layer_cuts = std::move(layer_cuts)};
}

Batch batch_of(const Tokens& tokens) {
  Batch batch{.sequences = {{{2, 0, 1}}}};
  for (int32_t i = 0; i < std::ssize(tokens); ++i) {
    batch.logit_rows.push_back(i);
    batch.rows.push_back({.token = tokens[static_cast<size_t>(i)], .position = i});
  }
  return batch;
}

class Rows {
 public:
  explicit Rows(const ModelOptions& options)
      : model_(options),
        executor_(model_, {.blocks = 3, .max_rows = kRows, .max_logit_rows = kRows}) {}

  int width() const { return model_.spec().hidden; }

  // The logits of all rows, in steps of so many.
  std::vector<float> logits(const Batch& batch, int chunk = kRows, Trace* trace = nullptr) {
    std::vector<float> all;
    for (int begin = 0; begin < std::ssize(batch.rows); begin += chunk) {
      Batch step = batch;
      const auto first = batch.rows.begin() + begin;
      step.rows.assign(first, std::min(first + chunk, batch.rows.end()));
      step.logit_rows.resize(step.rows.size());
      ForwardIo io{.trace = trace};
      executor_.run(step, io);
      all.insert(all.end(), io.logits.begin(), io.logits.end());
    }
    return all;
  }

  // The rows of the embedding.
  std::vector<float> embeddings(Batch batch) {
    batch.layer_end = 0;
    batch.logit_rows.clear();
    ForwardIo io;
    executor_.run(batch, io);
    return {io.hidden.begin(), io.hidden.end()};
  }

 private:
  Model model_;
  Executor executor_;
};

// Rows 3 to 9 and every third one begin with the embeddings of their tokens, which lie in the
// opposite order; the tokens are others.
Batch with_features(const Batch& plain, const std::vector<float>& embeddings, size_t width) {
  Batch batch = plain;
  for (size_t t = batch.rows.size(); t-- > 0;) {
    if (t % 3 != 0 && (t < 3 || t > 9)) continue;
    BatchRow& row = batch.rows[t];
    row.token = (row.token + 1) % kVocab;
    row.features = static_cast<int32_t>(batch.features.size() / width);
    const auto from = embeddings.begin() + static_cast<int64_t>(t * width);
    batch.features.insert(batch.features.end(), from, from + static_cast<int64_t>(width));
  }
  return batch;
}

TEST(Rows, OfFeaturesThatAreEmbeddingsAreThoseTokens) {
  Rows one(tiny());
  const Batch plain = batch_of(random_tokens(kRows, kVocab, 1));
  const auto expected = one.logits(plain);
  const auto width = static_cast<size_t>(one.width());
  const Batch batch = with_features(plain, one.embeddings(plain), width);
  for (const int chunk : {1, 7, kRows}) EXPECT_EQ(one.logits(batch, chunk), expected) << chunk;
  for (const auto& options : {tiny(2), tiny(1, {2}), tiny(2, {1})})
    EXPECT_EQ(Rows(options).logits(batch, 20), expected);

  Batch other = batch;  // the control: one bit of the features of row 9 changes it and what follows
  float& value = other.features[static_cast<size_t>(batch.rows[9].features) * width];
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  bits ^= 1U << 20;
  std::memcpy(&value, &bits, sizeof bits);
  const auto changed = one.logits(other);
  const auto before = expected.begin() + 9 * kVocab;
  EXPECT_TRUE(std::equal(expected.begin(), before, changed.begin()));
  EXPECT_FALSE(std::equal(before, before + kVocab, changed.begin() + 9 * kVocab));
}

// The queries of the first layer behind their rotation.
class Rotated final : public Trace {
 public:
  void begin_step(std::span<const TracedRow>) override {}
  void record(const TracedOp& op) override {
    if (op.name != "rope" || op.layer != 0) return;
    width = static_cast<size_t>(op.width);
    for (int64_t t = 0; t < op.rows; ++t)
      values.insert(values.end(), op.values + t * op.stride, op.values + t * op.stride + op.width);
  }
  std::span<const float> row(size_t t) const { return std::span(values).subspan(t * width, width); }

  size_t width = 0;
  std::vector<float> values;
};

TEST(Rows, AreRotatedByAnotherPositionThanThatOfTheirSlot) {
  constexpr int kOffset = 5, kFirst = 10;  // rows behind the first ten are ahead by five
  Rows rows(tiny());
  Tokens tokens = random_tokens(kRows, kVocab, 2);  // the same ones every five rows
  for (size_t t = kOffset; t < kRows; ++t) tokens[t] = tokens[t - kOffset];
  const Batch plain = batch_of(tokens);
  Batch ahead = plain;
  for (size_t t = kFirst; t < kRows; ++t) ahead.rows[t].rotation_offset = kOffset;
  Rotated expected, found;
  const auto at_slots = rows.logits(plain, kRows, &expected);
  const auto at_others = rows.logits(ahead, kRows, &found);
  for (size_t t = 0; t + kOffset < kRows; ++t) {
    const size_t as = t < kFirst ? t : t + kOffset, not_as = t < kFirst ? t + kOffset : t;
    EXPECT_TRUE(std::ranges::equal(found.row(t), expected.row(as))) << t;
    EXPECT_FALSE(std::ranges::equal(found.row(t), expected.row(not_as))) << t;
  }
  // A row alone with itself attends to its own value whatever the rotation; among others it does
  // not.
  const auto first = at_slots.begin() + kFirst * kVocab;
  EXPECT_TRUE(std::equal(at_slots.begin(), first, at_others.begin()));
  EXPECT_FALSE(std::equal(first, first + kVocab, at_others.begin() + kFirst * kVocab));
  Batch alone = plain;
  alone.rows.resize(1);
  alone.logit_rows.resize(1);
  const auto unturned = rows.logits(alone);
  alone.rows[0].rotation_offset = 40;
  EXPECT_EQ(rows.logits(alone), unturned);
}

}  // namespace
}  // namespace invar
