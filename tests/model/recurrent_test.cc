// Layers with a state in a model: whatever pieces, steps, drafts, neighbours, ranks and instruction
// sets their rows come in, the logits have the same bits.
#include <gtest/gtest.h>

#include "base/error.h"
#include "cell_decoder.h"
#include "small_spec.h"

namespace invar {
namespace {

using namespace testing_model;

const PartSpec kMixers[] = {
    RecurrentSpec{.key_heads = 2, .heads = 4, .key_size = 24, .value_size = 32, .taps = 4},
    RecurrentSpec{.key_heads = 2,
                  .heads = 2,
                  .key_size = 16,
                  .value_size = 32,
                  .taps = 3,
                  .doubles = true,
                  .norm_eps = 1e-3f},
    ChannelDeltaSpec{.heads = 2, .size = 32, .taps = 4}, ShortConvSpec{.taps = 3},
    StateSpaceSpec{.groups = 2,
                   .heads = 4,
                   .state_size = 24,
                   .head_size = 16,
                   .taps = 4,
                   .norm_groups = 2,
                   .conv_bias = true,
                   .least_step = 0.01f}};

// Two layers of a kind around one with attention.
DecoderSpec hybrid_spec(const PartSpec& mixer = kMixers[0]) {
  DecoderSpec spec = small_spec(64, 3);
  const DenseFfnSpec ffn{.width = 64};
  const LayerSpec recurrent{.parts = {mixer, ffn}};
  spec.layer_specs = {recurrent, {.parts = {AttentionSpec{}, ffn}}, recurrent};
  return spec;
}

// As many less one: the control.
PartSpec with_other_taps(PartSpec mixer) {
  std::visit(
      [](auto& spec) {
        if constexpr (requires { spec.taps; }) --spec.taps;
      },
      mixer);
  return mixer;
}

const Arithmetic kArithmetics[] = {
    {},
    {.order = Order::hopper},
    {.weights = DType::f32, .is_exact = true, .cache = CacheType::f32}};

class RecurrentLayers : public ::testing::TestWithParam<PartSpec> {};

TEST_P(RecurrentLayers, ChunksRanksAndInstructionSetsDoNotShow) {
  const DecoderSpec spec = hybrid_spec(GetParam());
  check_spec(spec, "the test");
  const Logits expected = run(spec, {.set = "scalar"});
  for (const int chunk : {1, 7, 64, 65, 150})
    for (const int ranks : {1, 2})
      EXPECT_EQ(run(spec, {.ranks = ranks, .chunk = chunk, .threads = ranks}), expected)
          << chunk << " " << ranks;
  for (const std::string& set : instruction_sets()) {
    if (!is_supported(set)) continue;
    EXPECT_EQ(run(spec, {.set = set}), expected) << set;
  }
  EXPECT_THROW(make_shard(spec, 0, 4), UsageError);
  DecoderSpec other = spec;
  other.layer_specs[0].put(with_other_taps(GetParam()));
  EXPECT_NE(run(other), expected);
}

TEST_P(RecurrentLayers, PiecesAndDraftsDoNotShow) {
  constexpr int kTokens = 200;
  for (const Arithmetic& arithmetic : kArithmetics) {
    CellDecoder at_once(hybrid_spec(GetParam()), arithmetic);
    const std::vector<int32_t> tokens = at_once.tokens(kTokens);
    const Logits expected = at_once.run(piece(tokens, 0, kTokens));
    for (uint32_t seed = 0; seed < 6; ++seed) {
      CellDecoder cut(hybrid_spec(GetParam()), arithmetic);
      EXPECT_EQ(in_pieces(cut, tokens, seed), expected) << seed;
    }
    // The states that are left are read.
    CellDecoder forgetful(hybrid_spec(GetParam()), arithmetic);
    forgetful.run(piece(tokens, 0, 129));
    forgetful.forget_states();
    EXPECT_NE(forgetful.run(piece(tokens, 129, 130))[0], expected[129]);
  }
}

TEST_P(RecurrentLayers, NeighboursOfAStepDoNotShow) {
  constexpr int kTokens = 170, kSequences = CellDecoder::kSequences;
  CellDecoder together(hybrid_spec(GetParam()));
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Logits> expected, found(kSequences);
  for (int s = 0; s < kSequences; ++s) {
    CellDecoder alone(hybrid_spec(GetParam()));
    tokens.push_back(alone.tokens(kTokens, 3 + s));
    expected.push_back(alone.run(piece(tokens.back(), 0, kTokens)));
  }
  std::mt19937 random(5);
  for (int done = 0; done < kSequences * kTokens;) {
    std::vector<BatchRow> rows;
    for (int32_t s = 0; s < kSequences; ++s) {
      const int begin = static_cast<int>(found[s].size());
      const int count = random() % 3 ? 1 : static_cast<int>(random() % 80);
      for (const BatchRow& row : piece(tokens[s], begin, std::min(kTokens, begin + count), s))
        rows.push_back(row);
    }
    if (rows.empty()) continue;
    const Logits logits = together.run(rows);
    for (size_t i = 0; i < rows.size(); ++i) found[rows[i].sequence].push_back(logits[i]);
    done += static_cast<int>(rows.size());
  }
  EXPECT_EQ(found, expected);
  EXPECT_NE(expected[0], expected[1]);
}

// But where the stream is scaled.
TEST_P(RecurrentLayers, AreTrained) {
  DecoderSpec spec = hybrid_spec(GetParam());
  expect_backward(spec);
  spec.residual_scale = 0.5f;
  EXPECT_THROW(expect_backward(spec), Error);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecurrentLayers, ::testing::ValuesIn(kMixers));

}  // namespace
}  // namespace invar
