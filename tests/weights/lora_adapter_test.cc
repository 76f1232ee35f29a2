// Adapters as PEFT saves them: what is understood, and what is refused by its name.
#include "weights/lora_adapter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "../support/adapter_files.h"
#include "base/error.h"

namespace invar {
namespace {

using testing_adapter::Adapter;
using testing_adapter::Module;
using testing_adapter::Stacks;

std::string directory() {
  return (std::filesystem::path(::testing::TempDir()) /
          ("peft_adapter_test_" + std::to_string(::getpid())))
      .string();
}

const std::vector<Module> kModules = {{"model.layers.0.self_attn.q_proj", 12, 8},
                                      {"model.layers.1.mlp.down_proj", 8, 20}};

std::string refusal(const Adapter& adapter) {
  try {
    LoraAdapter(testing_adapter::write(directory(), kModules, adapter));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LoraAdapter, ItsModulesHaveRanksAndScales) {
  const LoraAdapter plain(testing_adapter::write(directory(), kModules, {.rank = 4, .alpha = 6}));
  ASSERT_EQ(plain.modules().size(), 2U);
  EXPECT_EQ(plain.modules()[0].name, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(plain.modules()[0].outputs, 12);
  EXPECT_EQ(plain.modules()[1].inputs, 20);
  EXPECT_EQ(plain.modules()[1].rank, 4);
  EXPECT_EQ(plain.modules()[1].scale, 1.5);
  const LoraAdapter by_root(testing_adapter::write(
      directory(), kModules, {.rank = 4, .alpha = 6, .more = {{"use_rslora", true}}}));
  EXPECT_EQ(by_root.modules()[0].scale, 3);
  const LoraAdapter patterns(testing_adapter::write(
      directory(), kModules,
      {.rank = 4,
       .alpha = 6,
       .more = {{"r", 16},
                {"rank_pattern", json::Object{{"q_proj", 4}, {"layers.1.mlp.down_proj", 4}}},
                {"alpha_pattern", json::Object{{"^model.layers.1.mlp.down_proj", 20}}}}}));
  EXPECT_EQ(patterns.modules()[0].scale, 1.5);
  EXPECT_EQ(patterns.modules()[1].scale, 5);
}

TEST(LoraAdapter, ItsDigestIsOfTensorsAndScales) {
  ThreadPool pool(2);
  const auto digest = [&](const Adapter& adapter) {
    return LoraAdapter(testing_adapter::write(directory(), kModules, adapter)).digest(pool);
  };
  const Digest first = digest({});
  EXPECT_EQ(digest({}), first);
  EXPECT_EQ(digest({.more = {{"lora_dropout", 0.1}, {"task_type", "X"}}}), first);
  EXPECT_NE(digest({.seed = 2}), first);
  EXPECT_NE(digest({.alpha = 9}), first);
  EXPECT_NE(digest({.is_bf16 = true}), first);
  EXPECT_THROW(digest({.size = INFINITY}), Error);
}

TEST(LoraAdapter, WhatIsNotComputedIsRefusedByItsName) {
  const std::vector<std::pair<std::string, json::Value>> refused = {
      {"use_dora", true},
      {"modules_to_save", json::Array{"lm_head"}},
      {"bias", "all"},
      {"lora_bias", true},
      {"fan_in_fan_out", true},
      {"init_lora_weights", "pissa"},
      {"layer_replication", json::Array{json::Array{0, 1}}},
      {"target_parameters", json::Array{"mlp.gate.weight"}},
      {"trainable_token_indices", json::Array{1}},
      {"alora_invocation_tokens", json::Array{1}},
      {"a_key_of_tomorrow", 1}};
  for (const auto& [key, value] : refused) {
    const std::string said = refusal({.more = {{key, value}}});
    EXPECT_NE(said.find(json::quoted(key)), said.npos) << said;
  }
  EXPECT_EQ(refusal({.more = {{"use_dora", false},
                              {"modules_to_save", nullptr},
                              {"init_lora_weights", true},
                              {"a_key_of_tomorrow", nullptr}}}),
            "");
}

TEST(LoraAdapter, StacksAreThoseOfEachExpert) {
  const LoraAdapter adapter{Stacks().write(directory())};
  ASSERT_EQ(adapter.modules().size(), 9U);
  const auto values = [&](const std::string& name) {
    std::vector<float> read(static_cast<size_t>(adapter.tensors().info(name).elements()));
    adapter.tensors().read(name, 0, std::ssize(read), DType::f32, read.data());
    return read;
  };
  for (const AdapterModule& module : adapter.modules()) {
    const int expert = module.name[std::string("model.layers.1.mlp.experts.").size()] - '0';
    const bool is_down = module.name.ends_with(".down_proj");
    const bool is_up = module.name.ends_with(".up_proj");
    const Stacks of;
    const int64_t inputs = is_down ? of.width : of.hidden;
    const int64_t outputs = is_down ? of.hidden : of.width;
    EXPECT_EQ(module.inputs, inputs);
    EXPECT_EQ(module.outputs, outputs);
    EXPECT_EQ(module.scale, 3);
    EXPECT_EQ(module.experts, of.experts);
    const float from = is_down ? 1001 : 1;
    const auto a = values(module.a), b = values(module.b);
    for (int64_t r = 0; r < of.rank; ++r)
      for (int64_t k = 0; k < inputs; ++k)
        EXPECT_EQ(a[r * inputs + k], from + (expert * of.rank + r) * inputs + k);
    for (int64_t n = 0; n < outputs; ++n)
      for (int64_t r = 0; r < of.rank; ++r)
        EXPECT_EQ(b[n * of.rank + r], from + 0.5F +
                                          (n + (is_up ? outputs : 0)) * of.rank * of.experts +
                                          r * of.experts + expert);
  }
}

TEST(LoraAdapter, StacksAreKnownByTheirShapes) {
  ThreadPool pool(1);
  const Digest digest = LoraAdapter{Stacks().write(directory())}.digest(pool);
  const Stacks turned{.of_gate_up = "", .of_down = ".base_layer"};
  EXPECT_EQ(LoraAdapter{turned.write(directory())}.digest(pool), digest);
  const auto expect_refused = [](const Stacks& stacks, const char* sentence) {
    try {
      LoraAdapter{stacks.write(directory())};
      ADD_FAILURE() << "expected: " << sentence;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  };
  expect_refused({.more = {{"r", 4}}}, "expected 4 rows for each expert");
  expect_refused({.experts = 1025, .rank = 1, .hidden = 3, .width = 2}, "at most 1024 experts");
}

TEST(LoraAdapter, AWrongOneIsRefused) {
  EXPECT_NE(refusal({.more = {{"peft_type", "IA3"}}}), "");
  EXPECT_NE(refusal({.more = {{"r", 5}}}), "");
  EXPECT_NE(refusal({.rank = 300}), "");
  EXPECT_NE(refusal({.more = {{"lora_alpha", "x"}}}), "");
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, json::Value>>{{"r", 4.5},
                                                        {"r", 1e300},
                                                        {"r", -4},
                                                        {"r", 0},
                                                        {"use_rslora", "yes"},
                                                        {"rank_pattern", json::Array{"q_proj"}},
                                                        {"alpha_pattern", 5}}) {
    const std::string said = refusal({.more = {{key, value}}});
    EXPECT_NE(said.find(key == "r" ? "rank" : key), said.npos) << key << ": " << said;
    EXPECT_NE(said.find("adapter_config.json"), said.npos) << said;
  }
  EXPECT_NE(refusal({.more = {{"rank_pattern", json::Object{{"(a+)+b", 4}}}}}), "");
  EXPECT_THROW(LoraAdapter(directory() + "/none"), Error);
  testing_adapter::Tensors other;
  other.add("base_model.model.lm_head.weight", {2, 2}, {1, 2, 3, 4});
  other.write(std::filesystem::path(directory()) / "adapter_model.safetensors");
  EXPECT_THROW(LoraAdapter{directory()}, Error);
  testing_adapter::Tensors half;
  half.add("base_model.model.a.lora_A.weight", {4, 2}, std::vector<float>(8));
  half.write(std::filesystem::path(directory()) / "adapter_model.safetensors");
  EXPECT_THROW(LoraAdapter{directory()}, Error);
}

}  // namespace
}  // namespace invar
