// Layers that differ within one model: norms before, after and on both sides, windows, two bases of
// rotation and none, widths, a layer without a feed-forward network. The forward equals a scalar
// evaluation, whatever the chunks, ranks and instruction set.
#include <gtest/gtest.h>

#include "base/error.h"
#include "decoder_runs.h"
#include "model/tape.h"
#include "small_spec.h"

namespace invar {
namespace {

using namespace testing_model;

DecoderSpec mixed_spec() {
  DecoderSpec spec = small_spec(40, 4);
  spec.qkv_bias = spec.qk_norm = true;
  const auto rope = [](double theta) { return RopeSpec{.theta = theta}; };
  spec.layer_specs = {
      {.parts = {AttentionSpec{.window = 24, .rope = rope(1e4)}, DenseFfnSpec{.width = 128}}},
      {.parts = {AttentionSpec{.rope = std::nullopt, .norms = NormPlace::after},
                 DenseFfnSpec{.width = 64, .norms = NormPlace::after}}},
      {.parts = {AttentionSpec{.rope = rope(1e6), .norms = NormPlace::both},
                 DenseFfnSpec{.width = 128, .norms = NormPlace::both}}},
      {.parts = {AttentionSpec{.window = 100, .rope = rope(1e4)}}},
  };
  return spec;
}

TEST(MixedLayers, EqualAScalarEvaluation) {
  const DecoderSpec spec = mixed_spec();
  check_spec(spec, "the test");
  EXPECT_EQ(run(spec), evaluate(spec));
  EXPECT_EQ(run(spec, {.order = Order::hopper}), evaluate(spec, Order::hopper));
}

TEST(MixedLayers, ChunksRanksAndInstructionSetsDoNotShow) {
  const DecoderSpec spec = mixed_spec();
  EXPECT_EQ(identity({}, spec), "invar-1/portable/bf16/row2.4+2");
  const Logits expected = run(spec, {.set = "scalar"});
  for (const int chunk : {1, 7, 150})
    for (const int ranks : {1, 2})
      EXPECT_EQ(run(spec, {.ranks = ranks, .chunk = chunk}), expected) << chunk << " " << ranks;
  for (const std::string& set : instruction_sets()) {
    if (!is_supported(set)) continue;
    EXPECT_EQ(run(spec, {.set = set}), expected) << set;
  }
  EXPECT_THROW(make_shard(spec, 0, 4), UsageError);
}

// What Gemma, Granite, GLM and Hunyuan have.
DecoderSpec scaled_spec() {
  DecoderSpec spec = mixed_spec();
  spec.embedding_scale = 3.7f;
  spec.residual_scale = 0.22f;
  spec.logits_divisor = 1.3f;
  spec.logits_cap = 2.0f;
  spec.late_qk_norm = true;
  spec.layer_specs[0].attention()->score_scale = 0.4;
  spec.layer_specs[2].attention()->score_cap = 1.5f;
  spec.layer_specs[1].ffn()->curve = spec.layer_specs[2].ffn()->curve = Nonlinearity::gelu_tanh;
  RopeSpec& rope = *spec.layer_specs[3].attention()->rope;
  rope.rotated = 10;
  rope.scaling = RopeSpec::Scaling::yarn;
  rope.factor = 4;
  rope.original_positions = 32;
  rope.attention_factor = 1.1;
  return spec;
}

// What Falcon and OLMo have.
DecoderSpec parallel_spec() {
  DecoderSpec spec = mixed_spec();
  spec.norm = NormKind::layer;
  spec.joint_qk_norm = true;
  for (LayerSpec& layer : spec.layer_specs) {
    layer.attention()->norms = NormPlace::before;
    if (layer.ffn())
      layer.put(DenseFfnSpec{.width = layer.ffn_width(),
                             .curve = Nonlinearity::gelu,
                             .is_gated = false,
                             .is_parallel = true});
  }
  spec.layer_specs[3].put(DenseFfnSpec{.width = 96, .curve = Nonlinearity::gelu_tanh});
  return spec;
}

// MiMo has values that are narrower than keys and scaled, and key/value heads of layers.
DecoderSpec narrow_spec() {
  DecoderSpec spec = mixed_spec();
  for (LayerSpec& layer : spec.layer_specs) {
    layer.attention()->value_dim = 8;
    layer.attention()->value_scale = 0.707f;
  }
  spec.layer_specs[0].attention()->kv_heads = 4;
  spec.layer_specs[3].attention()->kv_heads = 4;
  spec.layer_specs[3].attention()->has_sinks = true;
  return spec;
}

TEST(MixedLayers, NarrowValuesEqualAScalarEvaluationInAnySchedule) {
  const DecoderSpec spec = narrow_spec();
  check_spec(spec, "the test");
  const Logits expected = evaluate(spec);
  for (const std::string& set : instruction_sets()) {
    if (!is_supported(set)) continue;
    for (const int chunk : {7, 150}) EXPECT_EQ(run(spec, {.set = set, .chunk = chunk}), expected);
  }
  EXPECT_EQ(run(spec, {.order = Order::hopper}), evaluate(spec, Order::hopper));
  DecoderSpec wide = spec;  // whose heads ranks share out
  for (LayerSpec& layer : wide.layer_specs) layer.attention()->value_dim = 16;
  const Logits of_wide = evaluate(wide);
  for (const int ranks : {1, 2}) EXPECT_EQ(run(wide, {.ranks = ranks, .threads = ranks}), of_wide);
}

// The control.
TEST(MixedLayers, TheirNumbersShow) {
  const Logits expected = evaluate(narrow_spec());
  const auto differs = [&](auto change) {
    DecoderSpec spec = narrow_spec();
    change(spec.layer_specs);
    return run(spec) != expected;
  };
  EXPECT_FALSE(differs([](auto&) {}));
  EXPECT_TRUE(differs([](auto& layers) { layers[1].attention()->value_scale = 0.708f; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[0].attention()->kv_heads = 2; }));
  EXPECT_TRUE(differs([](auto& layers) {
    for (LayerSpec& layer : layers) layer.attention()->value_dim = 16;
  }));
}

TEST(MixedLayers, FamiliesChoicesEqualAScalarEvaluation) {
  for (const DecoderSpec& spec : {scaled_spec(), parallel_spec()}) {
    check_spec(spec, "the test");
    const Logits expected = evaluate(spec);
    for (const std::string& set : instruction_sets()) {
      if (!is_supported(set)) continue;
      for (const int chunk : {7, 150}) EXPECT_EQ(run(spec, {.set = set, .chunk = chunk}), expected);
    }
    EXPECT_EQ(run(spec, {.order = Order::hopper}), evaluate(spec, Order::hopper));
    if (!spec.joint_qk_norm) {
      EXPECT_EQ(run(spec, {.ranks = 2}), expected);
    }
  }
  EXPECT_THROW(make_shard(parallel_spec(), 0, 2), UsageError);
}

// The control: each of them is seen.
TEST(MixedLayers, EveryChoiceOfAFamilyShows) {
  const auto differs = [](DecoderSpec spec, auto change) {
    const Logits expected = evaluate(spec);
    change(spec);
    return run(spec) != expected;
  };
  const DecoderSpec scaled = scaled_spec(), parallel = parallel_spec();
  EXPECT_FALSE(differs(scaled, [](DecoderSpec&) {}));
  EXPECT_TRUE(differs(scaled, [](DecoderSpec& s) { s.embedding_scale = 1; }));
  EXPECT_TRUE(differs(scaled, [](DecoderSpec& s) { s.residual_scale = 1; }));
  EXPECT_TRUE(differs(scaled, [](DecoderSpec& s) { s.logits_divisor = 1; }));
  EXPECT_TRUE(differs(scaled, [](DecoderSpec& s) { s.logits_cap = 0; }));
  EXPECT_TRUE(differs(scaled, [](DecoderSpec& s) { s.late_qk_norm = false; }));
  EXPECT_TRUE(
      differs(scaled, [](DecoderSpec& s) { s.layer_specs[0].attention()->score_scale = 0; }));
  EXPECT_TRUE(differs(scaled, [](DecoderSpec& s) { s.layer_specs[2].attention()->score_cap = 0; }));
  EXPECT_TRUE(
      differs(scaled, [](DecoderSpec& s) { s.layer_specs[2].ffn()->curve = Nonlinearity::silu; }));
  EXPECT_TRUE(
      differs(scaled, [](DecoderSpec& s) { s.layer_specs[3].attention()->rope->rotated = 0; }));
  EXPECT_TRUE(differs(
      scaled, [](DecoderSpec& s) { s.layer_specs[3].attention()->rope->attention_factor = 1; }));
  EXPECT_TRUE(
      differs(parallel, [](DecoderSpec& s) { s.layer_specs[0].ffn()->is_parallel = false; }));
  EXPECT_TRUE(differs(
      parallel, [](DecoderSpec& s) { s.layer_specs[0].ffn()->curve = Nonlinearity::gelu_tanh; }));
}

// The control: each of the layers' numbers is seen.
TEST(MixedLayers, EveryChoiceOfALayerShows) {
  const Logits expected = evaluate(mixed_spec());
  const auto differs = [&](auto change) {
    DecoderSpec spec = mixed_spec();
    change(spec.layer_specs);
    return run(spec) != expected;
  };
  EXPECT_FALSE(differs([](auto&) {}));
  EXPECT_TRUE(differs([](auto& layers) { layers[0].attention()->window = 25; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[1].attention()->rope = RopeSpec{}; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[2].attention()->rope->theta = 1e4; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[1].attention()->norms = NormPlace::both; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[2].ffn()->norms = NormPlace::before; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[3].put(DenseFfnSpec{.width = 64}); }));
}

TEST(MixedLayers, WhatHasNoBackwardIsRefused) {
  DecoderSpec spec = mixed_spec();
  spec.layer_specs[1].attention()->score_cap = 30;
  const auto device = make_host_device();
  ThreadPool pool(1);
  const auto source = dummy_weights(spec, 3);
  const DecoderWeights weights(spec, {}, make_shard(spec, 0, 1), *source, *device, pool);
  const Decoder decoder(spec, {}, select_kernels(Order::portable, "auto"), weights, *device, &pool);
  try {
    const Tape tape(decoder, select_training_kernels(Order::portable, "auto"), 32);
    FAIL() << "a tape of such layers";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "layer 1 of the model cannot be trained: its scores are capped, whose gradient is "
                 "not implemented");
  }
}

}  // namespace
}  // namespace invar
