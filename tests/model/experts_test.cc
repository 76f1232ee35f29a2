// Layers with experts beside layers without: the forward equals a scalar evaluation, whatever the
// chunks, ranks and instruction set; each number of a router shows.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "decoder_runs.h"
#include "small_spec.h"

namespace invar {
namespace {

using namespace testing_model;

DecoderSpec expert_spec() {
  DecoderSpec spec = small_spec(48, 4);
  const auto layer = [](const ExpertsSpec& experts) {
    return LayerSpec{.parts = {AttentionSpec{}, experts}};
  };
  spec.layer_specs = {
      layer({.routing = {.experts = 12, .chosen = 3, .renormalised = true}, .width = 80}),
      {.parts = {AttentionSpec{}, DenseFfnSpec{.width = 128}}},
      layer({.routing = {.experts = 16,
                         .chosen = 4,
                         .score = ExpertScore::sigmoid,
                         .groups = 4,
                         .chosen_groups = 2,
                         .pair_score = true,
                         .renormalised = true,
                         .epsilon = 1e-20f,
                         .scale = 2.5f},
             .width = 40,
             .has_choice_bias = true,
             .shared_width = 64}),
      layer({.routing = {.experts = 5, .chosen = 2, .score = ExpertScore::softmax_of_chosen},
             .width = 33,
             .shared_width = 128,
             .shared_gate = true}),
  };
  return spec;
}

TEST(Experts, EqualAScalarEvaluation) {
  const DecoderSpec spec = expert_spec();
  check_spec(spec, "the test");
  EXPECT_EQ(identity({}, spec), "invar-1/portable/bf16/row2.1+4+2");
  EXPECT_EQ(run(spec), evaluate(spec));
  EXPECT_EQ(run(spec, {.order = Order::hopper}), evaluate(spec, Order::hopper));
}

TEST(Experts, ChunksRanksThreadsAndInstructionSetsDoNotShow) {
  const DecoderSpec spec = expert_spec();
  const Logits expected = run(spec, {.set = "scalar"});
  for (const int chunk : {1, 7, 150})
    for (const int ranks : {1, 2})
      for (const int threads : {1, 3})
        EXPECT_EQ(run(spec, {.ranks = ranks, .chunk = chunk, .threads = threads}), expected)
            << chunk << " " << ranks << " " << threads;
  for (const std::string& set : instruction_sets()) {
    if (!is_supported(set)) continue;
    EXPECT_EQ(run(spec, {.set = set}), expected) << set;
  }
  EXPECT_THROW(make_shard(spec, 0, 4), UsageError);
}

using Placed = ExpertPlacement::Order;

TEST(Experts, WhereTheyLieDoesNotShow) {
  const DecoderSpec spec = expert_spec();
  const Logits expected = run(spec, {.set = "scalar"});
  for (const ExpertPlacement& placement :
       {ExpertPlacement{.copies = 5}, ExpertPlacement{.order = Placed::round_robin, .copies = 3},
        ExpertPlacement{.order = Placed::shuffled, .seed = 4},
        ExpertPlacement{.order = Placed::shuffled, .seed = 5, .copies = 2}})
    for (const int ranks : {1, 2})
      for (const char* set : {"scalar", "auto"})
        EXPECT_EQ(run(spec, {.set = set, .ranks = ranks, .placement = placement}), expected)
            << ranks << " " << set;
}

// The control adds in the order of memory, and shows it.
TEST(Experts, WhereTheyLieShowsInTheBaseline) {
  const DecoderSpec spec = expert_spec();
  const ExpertPlacement shuffled{.order = Placed::shuffled, .seed = 4};
  for (const char* set : {"scalar", "auto"})
    EXPECT_NE(run(spec, {.set = set, .placement = shuffled, .is_baseline = true}),
              run(spec, {.set = set, .is_baseline = true}));
}

TEST(Experts, EveryPlaceHasAnExpertAndEveryExpertItsPlaces) {
  for (const auto& [strategy, copies] :
       {std::pair{"linear", 0}, {"round_robin", 2}, {"shuffled:9", 7}}) {
    const ExpertPlacement placement = parse_expert_placement(strategy, copies);
    const std::vector<int32_t> at = placement.experts_at(7, 2), places = placement.places_of(7, 2);
    ASSERT_EQ(std::ssize(at), 7 + copies);
    for (int32_t e = 0; e < 7; ++e) {
      EXPECT_EQ(std::ranges::count(at, e), e < copies ? 2 : 1);
      for (const int i : {0, 1}) EXPECT_EQ(at[static_cast<size_t>(places[2 * e + i])], e);
      EXPECT_EQ(places[2 * e] != places[2 * e + 1], e < copies);
    }
  }
  EXPECT_EQ(parse_expert_placement("round_robin", 0).experts_at(5, 2),
            (std::vector<int32_t>{0, 2, 4, 1, 3}));
  for (const char* bad : {"", "random", "shuffled", "shuffled:", "shuffled:x", "linear "})
    EXPECT_THROW(parse_expert_placement(bad, 0), UsageError) << bad;
  EXPECT_THROW(parse_expert_placement("linear", -1), UsageError);
}

// Latent attention, with and without a vector that queries are made of.
DecoderSpec latent_spec(int query_rank) {
  DecoderSpec spec = expert_spec();
  spec.kv_heads = 1;
  spec.head_dim = 32 + 8;
  for (LayerSpec& layer : spec.layer_specs) {
    layer.attention()->latent = {
        .rank = 32, .rope = 8, .nope = 32, .value = 16, .query_rank = query_rank};
    layer.attention()->rope->rotated = 8;
    layer.attention()->score_scale = 0.17;
  }
  return spec;
}

TEST(LatentAttention, EqualsAScalarEvaluationInAnySchedule) {
  EXPECT_EQ(run(latent_spec(0)), evaluate(latent_spec(0)));
  const DecoderSpec spec = latent_spec(48);
  check_spec(spec, "the test");
  const Logits expected = evaluate(spec);
  for (const int ranks : {1, 2})
    EXPECT_EQ(run(spec, {.ranks = ranks, .chunk = 7, .threads = ranks}), expected) << ranks;
  for (const std::string& set : instruction_sets()) {
    if (!is_supported(set)) continue;
    EXPECT_EQ(run(spec, {.set = set}), expected) << set;
  }
  EXPECT_EQ(run(spec, {.order = Order::hopper}), evaluate(spec, Order::hopper));
}

// The control.
TEST(LatentAttention, ItsNumbersShow) {
  const Logits expected = evaluate(latent_spec(48));
  DecoderSpec other = latent_spec(48);
  for (LayerSpec& layer : other.layer_specs) layer.attention()->score_scale = 0.18;
  EXPECT_NE(run(other), expected);
  other = latent_spec(48);
  for (LayerSpec& layer : other.layer_specs) layer.attention()->rope->rotated = 0;
  EXPECT_NE(run(other), expected);
  EXPECT_NE(run(latent_spec(0)), expected);
}

// As gpt-oss: biases everywhere, clamped pairs, sinks.
DecoderSpec sinking_spec() {
  DecoderSpec spec = expert_spec();
  spec.qkv_bias = spec.o_bias = true;
  for (LayerSpec& layer : spec.layer_specs) {
    layer.attention()->has_sinks = true;
    if (!layer.experts() || layer.experts()->shared_gate) continue;
    layer.experts()->has_biases = true;
    layer.experts()->curve = Nonlinearity::clamped;
  }
  spec.layer_specs[0].attention()->window = 20;
  return spec;
}

TEST(Sinks, EqualAScalarEvaluationInAnySchedule) {
  const DecoderSpec spec = sinking_spec();
  check_spec(spec, "the test");
  const Logits expected = evaluate(spec);
  for (const int ranks : {1, 2})
    EXPECT_EQ(run(spec, {.ranks = ranks, .chunk = 7, .threads = ranks}), expected) << ranks;
  for (const std::string& set : instruction_sets()) {
    if (!is_supported(set)) continue;
    EXPECT_EQ(run(spec, {.set = set}), expected) << set;
  }
  EXPECT_EQ(run(spec, {.order = Order::hopper}), evaluate(spec, Order::hopper));
}

// The control.
TEST(Sinks, ItsChoicesShow) {
  const Logits expected = evaluate(sinking_spec());
  DecoderSpec other = sinking_spec();
  other.layer_specs[3].attention()->has_sinks = false;
  EXPECT_NE(run(other), expected);
  other = sinking_spec();
  other.layer_specs[2].experts()->curve = Nonlinearity::silu;
  EXPECT_NE(run(other), expected);
  other = sinking_spec();
  other.layer_specs[0].experts()->has_biases = false;
  EXPECT_NE(run(other), expected);
}

// As Llama 4: chunks and heads of unit size where something turns, queries that grow where nothing
// does, experts whose weights multiply what they read.
DecoderSpec chunked_spec() {
  DecoderSpec spec = expert_spec();
  for (const size_t layer : {0, 1, 3}) {
    AttentionSpec& attention = *spec.layer_specs[layer].attention();
    attention.chunk = layer == 3 ? 100 : 24;
    attention.has_unit_heads = true;
  }
  spec.layer_specs[2].attention()->rope = std::nullopt;
  spec.layer_specs[2].attention()->growth = GrowthSpec{.scale = 0.7, .step = 10};
  for (const size_t layer : {2, 3}) {
    ExpertsSpec& experts = *spec.layer_specs[layer].experts();
    experts.routing = {.experts = 16, .chosen = layer == 3 ? 3 : 1};
    experts.routing.score = ExpertScore::sigmoid_of_chosen;
    experts.has_choice_bias = experts.shared_gate = false;
    experts.weighs_inputs = true;
  }
  return spec;
}

TEST(Chunks, EqualAScalarEvaluationInAnySchedule) {
  const DecoderSpec spec = chunked_spec();
  check_spec(spec, "the test");
  const Logits expected = evaluate(spec);
  for (const int chunk : {1, 7, 150})
    for (const int ranks : {1, 2})
      EXPECT_EQ(run(spec, {.ranks = ranks, .chunk = chunk, .threads = ranks}), expected)
          << chunk << " " << ranks;
  for (const std::string& set : instruction_sets()) {
    if (!is_supported(set)) continue;
    EXPECT_EQ(run(spec, {.set = set}), expected) << set;
  }
  EXPECT_EQ(run(spec, {.order = Order::hopper}), evaluate(spec, Order::hopper));
}

// The control.
TEST(Chunks, TheirNumbersShow) {
  const Logits expected = evaluate(chunked_spec());
  const auto differs = [&](auto change) {
    DecoderSpec spec = chunked_spec();
    change(spec.layer_specs);
    return run(spec) != expected;
  };
  EXPECT_FALSE(differs([](auto&) {}));
  EXPECT_TRUE(differs([](auto& layers) { layers[0].attention()->chunk = 25; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[1].attention()->has_unit_heads = false; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[2].attention()->growth->scale = 0.6; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[2].attention()->growth->step = 11; }));
  EXPECT_TRUE(differs([](auto& layers) { layers[2].experts()->weighs_inputs = false; }));
  EXPECT_TRUE(differs(
      [](auto& layers) { layers[3].experts()->routing.score = ExpertScore::softmax_of_chosen; }));
}

// The control: each of the routers' numbers is seen.
TEST(Experts, EveryChoiceShows) {
  const Logits expected = evaluate(expert_spec());
  const auto differs = [&](auto change) {
    DecoderSpec spec = expert_spec();
    change(spec.layer_specs[0].experts()->routing, spec.layer_specs[2].experts()->routing,
           spec.layer_specs[3].experts()->routing);
    return run(spec) != expected;
  };
  EXPECT_FALSE(differs([](Routing&, Routing&, Routing&) {}));
  EXPECT_TRUE(differs([](Routing& a, Routing&, Routing&) { a.chosen = 2; }));
  EXPECT_TRUE(differs([](Routing& a, Routing&, Routing&) { a.renormalised = false; }));
  EXPECT_TRUE(differs([](Routing& a, Routing&, Routing&) { a.score = ExpertScore::sigmoid; }));
  EXPECT_TRUE(differs([](Routing&, Routing& b, Routing&) { b.chosen_groups = 3; }));
  EXPECT_TRUE(differs([](Routing&, Routing& b, Routing&) { b.pair_score = false; }));
  EXPECT_TRUE(differs([](Routing&, Routing& b, Routing&) { b.scale = 2.0f; }));
  EXPECT_TRUE(differs([](Routing&, Routing& b, Routing&) { b.epsilon = 0.25f; }));
  EXPECT_TRUE(differs([](Routing&, Routing&, Routing& c) { c.score = ExpertScore::softmax; }));
  DecoderSpec ungated = expert_spec();
  ungated.layer_specs[3].experts()->shared_gate = false;
  EXPECT_NE(run(ungated), expected);
}

TEST(Experts, NumbersThatDoNotFitAreRefused) {
  const auto refusal = [](auto change) -> std::string {
    DecoderSpec spec = expert_spec();
    change(spec.layer_specs[2]);
    try {
      check_spec(spec, "the test");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal([](LayerSpec&) {}), "");
  EXPECT_EQ(refusal([](LayerSpec& l) { l.experts()->routing.chosen = 17; }),
            "the test: expected a number of experts of a token from 1 to 16, found 17");
  EXPECT_EQ(refusal([](LayerSpec& l) { l.experts()->routing.chosen = 9; }),
            "the test: expected 9 experts of a token out of 2 of 4 equal groups of 16 experts");
  EXPECT_EQ(refusal([](LayerSpec& l) { l.parts.push_back(DenseFfnSpec{.width = 64}); }),
            "the test: expected at most one part of each role in a layer, in the order of roles");
}

// What a router does with numbers that are not finite, or alike, or minus infinity.
TEST(Experts, AChoiceIsAlwaysOfSoManyDifferentExperts) {
  const ScopedFlushToZero flush;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = INFINITY;
  for (const ExpertScore score : {ExpertScore::softmax, ExpertScore::sigmoid,
                                  ExpertScore::softmax_of_chosen, ExpertScore::sigmoid_of_chosen})
    for (const std::vector<float>& row :
         {std::vector<float>(8, nan), std::vector<float>(8, -inf), std::vector<float>(8, 1.0f),
          std::vector<float>{nan, 1, inf, -inf, nan, 2, 2, 2}}) {
      const Routing how{.experts = 8, .chosen = 3, .score = score, .groups = 4, .chosen_groups = 2};
      std::vector<float> logits = row;
      float choice[8], weights[3];
      int32_t ids[3] = {-1, -1, -1};
      routing::route(how, logits.data(), nullptr, choice, ids, weights);
      EXPECT_TRUE(0 <= ids[0] && ids[0] < ids[1] && ids[1] < ids[2] && ids[2] < 8);
      if (row[0] == 1.0f) {
        EXPECT_EQ(std::vector(ids, ids + 3), std::vector({0, 1, 2}));
      }
    }
}

}  // namespace
}  // namespace invar
