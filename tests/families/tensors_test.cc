#include "model/families/tensors.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "../weights/model_files.h"
#include "model/families/families.h"
#include "model/families/stored_places.h"
#include "weights/hf_directory.h"

namespace invar {
namespace {

std::string golden(const std::string& name) {
  return std::string(INVAR_SOURCE_DIR) + "/tests/data/golden/" + name;
}

DecoderSpec golden_spec(const std::string& name) {
  const HfDirectory model = open_hf_directory(golden(name));
  return parse_model_config(model.config, model.generation_config, model.path).spec;
}

// A source of tensors that all hold one value; its list can be edited.
class FakeSource : public TensorSource {
 public:
  explicit FakeSource(const DecoderSpec& spec) {
    for (const TensorSpec& tensor : tensors_of(spec)) set(tensor.name, {DType::bf16, tensor.shape});
  }
  void set(const std::string& name, TensorInfo info) {
    infos_[name] = std::move(info);
    list();
  }
  void remove(const std::string& name) {
    infos_.erase(name);
    list();
  }
  void set_value(const std::string& name, int64_t element, float value) {
    values_[name] = {element, value};
  }

  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return infos_.contains(std::string(name)); }
  const TensorInfo& info(std::string_view name) const override {
    return infos_.at(std::string(name));
  }
  void read(std::string_view name, int64_t first, int64_t count, DType, void* out) const override {
    for (int64_t i = 0; i < count; ++i) static_cast<float*>(out)[i] = 1;
    const auto special = values_.find(std::string(name));
    if (special == values_.end()) return;
    const auto [element, value] = special->second;
    if (element >= first && element < first + count)
      static_cast<float*>(out)[element - first] = value;
  }
  std::string where(std::string_view name) const override {
    return "fake: tensor " + std::string(name);
  }

 private:
  void list() {
    names_.clear();
    for (const auto& [name, info] : infos_) names_.push_back(name);
  }

  std::map<std::string, TensorInfo> infos_;
  std::map<std::string, std::pair<int64_t, float>> values_;
  std::vector<std::string> names_;
};

TEST(Tensors, TheGoldenModelsHaveJustTheListedOnes) {
  ThreadPool pool(1);
  for (const char* name :
       {"llama-gqa", "llama3-rope-tied", "mistral-window", "qwen2-bias", "qwen3-qknorm"}) {
    const DecoderSpec spec = golden_spec(name);
    const auto source = open_checkpoint(golden(name));
    EXPECT_NO_THROW(check_tensors(spec, *source)) << name;
    EXPECT_EQ(tensors_of(spec).size(), source->names().size()) << name;
    EXPECT_EQ(product_type(spec, *source), DType::bf16);
    for (const std::string& tensor : source->names()) check_finite(*source, tensor, pool);
  }
}

TEST(Tensors, EveryTensorIsNeededWithItsShape) {
  for (const char* name : {"llama-gqa", "qwen2-bias", "qwen3-qknorm"}) {
    DecoderSpec spec = golden_spec(name);
    spec.o_bias = spec.mlp_bias = true;
    for (const TensorSpec& tensor : tensors_of(spec)) {
      FakeSource source(spec);
      EXPECT_NO_THROW(check_tensors(spec, source));
      source.remove(tensor.name);
      expect_message(error_of([&] { check_tensors(spec, source); }), tensor.name + " is missing");
      TensorInfo wrong{DType::bf16, tensor.shape};
      wrong.shape.back() += 1;
      source.set(tensor.name, wrong);
      expect_message(error_of([&] { check_tensors(spec, source); }), tensor.name + ": expected");
      source.set(tensor.name, {DType::bf16, {}});
      expect_message(error_of([&] { check_tensors(spec, source); }), "found []");
    }
  }
}

TEST(Tensors, AVocabularyThatDiffersIsSaid) {
  const DecoderSpec spec = golden_spec("llama-gqa");
  FakeSource source(spec);
  source.set("model.embed_tokens.weight", {DType::bf16, {300, 128}});
  expect_message(error_of([&] { check_tensors(spec, source); }),
                 "a row for each of the 320 tokens of config.json, found 300");
}

TEST(Tensors, WhatHasNoPlaceIsRefused) {
  const DecoderSpec spec = golden_spec("llama-gqa");
  FakeSource source(spec);
  source.set("model.layers.0.self_attn.rotary_emb.inv_freq", {DType::f32, {16}});
  EXPECT_NO_THROW(check_tensors(spec, source));
  source.set("model.layers.0.self_attn.q_proj.bias", {DType::bf16, {256}});
  expect_message(error_of([&] { check_tensors(spec, source); }),
                 "q_proj.bias has no place in the llama model");
}

// The module of multi-token prediction is a part of the checkpoint by name, when config.json says
// so; the copies that it may come with are let pass, anything else is not.
TEST(Tensors, AModuleThatPredictsFurtherIsExpectedByName) {
  DecoderSpec spec = golden_spec("llama-gqa");
  FakeSource plain(spec);
  spec.mtp_layers = 1;
  const std::string layer = fmt::format("model.layers.{}.", spec.layers);
  FakeSource source(spec);
  EXPECT_NO_THROW(check_tensors(spec, source));
  EXPECT_EQ(source.info(layer + "eh_proj.weight").shape, (std::vector<int64_t>{128, 256}));
  for (const char* name : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight",
                           "self_attn.q_proj.weight", "mlp.down_proj.weight"})
    EXPECT_TRUE(source.has(layer + name)) << name;
  source.set(layer + "embed_tokens.weight", {DType::bf16, {320, 128}});
  source.set(layer + "shared_head.head.weight", {DType::bf16, {320, 128}});
  EXPECT_NO_THROW(check_tensors(spec, source));
  source.set(layer + "other.weight", {DType::bf16, {128}});
  expect_message(error_of([&] { check_tensors(spec, source); }), "other.weight has no place");
  expect_message(error_of([&] { check_tensors(spec, plain); }), "enorm.weight is missing");
  spec.mtp_layers = 0;
  FakeSource unannounced(spec);
  unannounced.set(layer + "enorm.weight", {DType::bf16, {128}});
  expect_message(error_of([&] { check_tensors(spec, unannounced); }), "enorm.weight has no place");
}

TEST(Tensors, ATiedHeadMayBeStoredOnlyWhenItIsTheEmbedding) {
  const DecoderSpec spec = golden_spec("llama3-rope-tied");
  FakeSource source(spec);
  source.set("lm_head.weight", {DType::bf16, {320, 128}});
  EXPECT_NO_THROW(check_tensors(spec, source));
  source.set_value("lm_head.weight", 319 * 128 + 5, 2);
  expect_message(error_of([&] { check_tensors(spec, source); }),
                 "tie_word_embeddings, but the head differs from "
                 "\"model.embed_tokens.weight\" in row 319");
  source.set("lm_head.weight", {DType::bf16, {320, 127}});
  expect_message(error_of([&] { check_tensors(spec, source); }), "lm_head.weight: expected shape");
}

TEST(Tensors, OneWideMatrixMakesTheProductsWide) {
  const DecoderSpec spec = golden_spec("llama-gqa");
  FakeSource source(spec);
  source.set("model.norm.weight", {DType::f32, {128}});
  EXPECT_EQ(product_type(spec, source), DType::bf16);
  source.set("model.layers.1.mlp.up_proj.weight", {DType::f16, {352, 128}});
  EXPECT_EQ(product_type(spec, source), DType::f32);
}

// Every specification of tests/families/tiny_*configs.json by its name there.
std::map<std::string, DecoderSpec> tiny_specs() {
  std::map<std::string, DecoderSpec> specs;
  for (const char* kind : {"", "expert_", "gemma4_", "hybrid_"}) {
    const std::string path =
        fmt::format("{}/tests/families/tiny_{}configs.json", INVAR_SOURCE_DIR, kind);
    const json::Value configs = json::parse_file(path);
    for (const auto& [name, config] : configs.as_object())
      specs[name] = parse_model_config(config, {}, name).spec;
  }
  return specs;
}

// The places of a stored tensor that its parts read, in units of a part's rows; -1 for one that two
// of them read.
std::set<int64_t> places_read(const StoredTensor& stored) {
  std::set<int64_t> places;
  for (const StoredTensor::Part& part : stored.parts)
    for (int64_t row = 0; row < part.of.shape[0]; ++row)
      if (!places.insert(part.at.row ? part.at.row(row) : row).second) places.insert(-1);
  return places;
}

TEST(Tensors, PartsOfAStoredTensorReadEachOfItsRowsOnce) {
  int shared = 0;
  for (const auto& [name, spec] : tiny_specs())
    for (const StoredTensor& stored : stored_tensors(spec)) {
      const StoredTensor::Part& first = stored.parts.front();
      const bool is_whole = !first.at.row && !stored.parts.back().at.row;  // of each part
      if (first.at.is_transposed || (is_whole && stored.parts.size() > 1)) continue;
      const TensorInfo info{DType::bf16, stored.shape}, of{DType::bf16, first.of.shape};
      const int64_t units = info.elements() / of.row_elements();
      const std::set<int64_t> places = places_read(stored);
      EXPECT_EQ(std::ssize(places), units) << name << ": " << stored.name;
      EXPECT_EQ(*places.begin(), 0) << name << ": " << stored.name;
      EXPECT_EQ(*places.rbegin(), units - 1) << name << ": " << stored.name;
      shared += stored.parts.size() > 1;
    }
  EXPECT_GT(shared, 20);  // the control: some hold several
}

// The matrices of a layer that W8A8 and FP8 directories hold as numbers of 8 bits, each by the last
// words of its name.
std::string quantised_of(const DecoderSpec& spec, int layer) {
  std::string all;
  for (const TensorSpec& tensor : tensors_of(spec))
    if (tensor.layer == layer && tensor.takes_quantised && tensor.expert < 0) {
      const std::string name = tensor.name.substr(0, tensor.name.rfind('.'));
      all += name.substr(name.rfind('.') + 1) + " ";
    }
  return all;
}

TEST(Tensors, MatricesOfEveryKindOfLayerAreQuantised) {
  const std::map<std::string, DecoderSpec> specs = tiny_specs();
  const auto first = [&](const char* name) { return quantised_of(specs.at(name), 0); };
  EXPECT_EQ(first("llama"), "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj ");
  EXPECT_EQ(first("kimi_linear"), "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj ");
  EXPECT_EQ(first("lfm2"),
            "factor_proj gate_proj input_proj out_proj gate_proj up_proj down_proj ");
  EXPECT_EQ(first("nemotron_h"), "c_proj b_proj x_proj z_proj out_proj ");
}

}  // namespace
}  // namespace invar
