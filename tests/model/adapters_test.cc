// Adapters of models of several families, in f32, against the models that they merge into: other
// bits, the same numbers. This shows that names, rows, scales and places are understood.
#include <gtest/gtest.h>

#include <filesystem>

#include "../support/adapter_files.h"
#include "base/json.h"
#include "kernels/select.h"
#include "model/adapter_weights.h"
#include "model/families/families.h"
#include "model/families/family_source.h"
#include "model/families/make_model.h"
#include "model/families/presets.h"
#include "model/forward.h"
#include "weights/lora_adapter.h"

namespace invar {
namespace {

constexpr int kTokens = 40;
constexpr Arithmetic kExact{.weights = DType::f32, .is_exact = true, .cache = CacheType::f32};

std::vector<float> values_of(const TensorSource& source, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(source.info(name).elements()));
  source.read(name, 0, std::ssize(values), DType::f32, values.data());
  return values;
}

// The tensors of the decoder with s B A added where the adapter has something.
class Merged final : public TensorSource {
 public:
  Merged(const DecoderSpec& spec, const TensorSource& base, const LoraAdapter& adapter)
      : base_(base) {
    for (const std::string& name : base.names()) infos_[name] = {DType::f32, base.info(name).shape};
    std::map<std::string, const AdapterModule*> modules;
    for (const AdapterModule& module : adapter.modules())
      modules[module.name + ".weight"] = &module;
    for (const StoredTensor& stored : stored_tensors(spec))
      for (const auto& part : stored.parts) {
        const auto found = modules.find(stored.name);
        const auto of_expert = modules.find(part.of.name);  // where it is stored with all others'
        if (found != modules.end())
          add(part, *found->second, adapter.tensors());
        else if (part.of.expert >= 0 && of_expert != modules.end())
          add({part.of, {}}, *of_expert->second, adapter.tensors());
      }
  }
  const std::vector<std::string>& names() const override { return base_.names(); }
  bool has(std::string_view name) const override { return base_.has(name); }
  const TensorInfo& info(std::string_view name) const override {
    return infos_.find(std::string(name))->second;
  }
  std::string where(std::string_view name) const override { return base_.where(name); }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const auto found = sums_.find(std::string(name));
    if (found == sums_.end()) return base_.read(name, first, count, as, out);
    convert_elements(found->second.data() + first, DType::f32, count, as, out);
  }
  size_t merged() const { return sums_.size(); }

 private:
  void add(const StoredTensor::Part& part, const AdapterModule& module,
           const TensorSource& tensors) {
    std::vector<float>& sum = sums_[part.of.name] = values_of(base_, part.of.name);
    const std::vector<float> a = values_of(tensors, module.a), b = values_of(tensors, module.b);
    for (int64_t n = 0; n < part.of.shape[0]; ++n) {
      const int64_t row = part.at.row ? part.at.row(n) : n;
      for (int64_t k = 0; k < module.inputs; ++k) {
        double add = 0;
        for (int64_t r = 0; r < module.rank; ++r)
          add += double{b[row * module.rank + r]} * a[r * module.inputs + k];
        float& value = sum[n * module.inputs + k];
        value = static_cast<float>(value + module.scale * part.at.scale * add);
      }
    }
  }

  const TensorSource& base_;
  std::map<std::string, TensorInfo> infos_;
  std::map<std::string, std::vector<float>> sums_;
};

std::vector<float> logits_of(const DecoderSpec& spec, const TensorSource& source,
                             const LoraAdapter* adapter) {
  const ScopedFlushToZero flush;
  const auto device = make_host_device();
  ThreadPool pool(2);
  const Kernels kernels = select_kernels(Order::portable, "auto");
  const DecoderWeights weights(spec, kExact, make_shard(spec, 0, 1), source, *device, pool);
  Decoder decoder(spec, kExact, kernels, weights, *device, &pool);
  SequenceStore kv(*device, states_of(spec),
                   {.blocks = 1,
                    .block_size = 64,
                    .cells = 1,
                    .scratch = {.chunks = 3},
                    .layout = kernels.cache,
                    .type = CacheType::f32});
  Workspace workspace(decoder, kTokens, kTokens);
  Batch batch;
  batch.sequences.push_back({.blocks = {0}, .cell = 0});
  if (adapter) {
    batch.sequences[0].adapter = 0;
    batch.adapters = {{0, static_cast<int32_t>(adapter->most_rank()), adapter->path(),
                       to_hex(adapter->digest(pool))}};
  }
  for (int i = 0; i < kTokens; ++i) {
    batch.logit_rows.push_back(i);
    batch.rows.push_back({.token = i * 7 % static_cast<int>(spec.vocab), .position = i});
  }
  ForwardIo io;
  forward(decoder, batch, kv, workspace, solo_group(), io);
  return {io.logits.begin(), io.logits.end()};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{a[i]} * a[i];
  }
  return std::sqrt(sum / size);
}

// Every module that can have an adapter, of one rank but for one module.
LoraAdapter adapter_for(const DecoderSpec& spec) {
  std::vector<testing_adapter::Module> modules;
  for (const AdapterModule& module : adaptable_modules(spec, AdapterUser::cpu))
    modules.push_back({module.name, module.outputs, module.inputs});
  const auto directory = std::filesystem::path(::testing::TempDir()) /
                         ("model_adapters_" + std::to_string(::getpid()));
  return LoraAdapter(
      testing_adapter::write(directory, modules, {.seed = 9, .rank = 5, .alpha = 3, .size = 0.1F}));
}

void expect_merged(const DecoderSpec& spec, size_t tensors, const LoraAdapter& adapter) {
  const auto source = dummy_weights(spec, 3);
  const Merged merged(spec, *source, adapter);
  EXPECT_EQ(merged.merged(), tensors) << spec.family;
  const auto beside = logits_of(spec, *source, &adapter);
  const auto inside = logits_of(spec, merged, nullptr);
  EXPECT_LT(distance(inside, beside), 1e-5) << spec.family;
  EXPECT_GT(distance(inside, logits_of(spec, *source, nullptr)), 1e-2) << spec.family;
}

void expect_merged(const DecoderSpec& spec, size_t tensors) {
  expect_merged(spec, tensors, adapter_for(spec));
}

DecoderSpec spec_of(const std::string& config) {
  return parse_model_config(json::parse(config, "a test"), {}, "a test").spec;
}

TEST(AdaptersOfFamilies, AreTheNumbersOfMergedModels) {
  expect_merged(preset_spec("tiny"), 4 * 7);
  const std::string sizes =
      R"("vocab_size": 200, "hidden_size": 64, "intermediate_size": 100, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6)";
  const auto with = [&](const std::string& more) {
    return spec_of("{" + more + ", " + sizes + "}");
  };
  // Biases; fused and turned rows; norms behind parts; no gate.
  expect_merged(with(R"("model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"])"), 2 * 7);
  expect_merged(with(R"("model_type": "llama", "architectures": ["LlamaForCausalLM"],
                        "attention_bias": true, "mlp_bias": true)"),
                2 * 7);
  expect_merged(with(R"("model_type": "phi3", "architectures": ["Phi3ForCausalLM"],
                        "pad_token_id": 0)"),
                2 * 7);
  expect_merged(with(R"("model_type": "glm4", "architectures": ["Glm4ForCausalLM"])"), 2 * 7);
  expect_merged(with(R"("model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"])"), 2 * 7);
}

// Heads with a state, short convolutions, and experts with a shared one; multipliers of a family.
TEST(AdaptersOfFamilies, StandBesideStatesAndExperts) {
  const auto spec_of_made = [](const char* preset, const char* family) {
    return override_spec(preset_spec(preset), {.family = family, .layers = 4});
  };
  for (const auto& [family, tensors] :
       std::initializer_list<std::pair<const char*, size_t>>{{"qwen3_next", 134},
                                                             {"qwen3_5_text", 38},
                                                             {"olmo_hybrid", 37},
                                                             {"kimi_linear", 136},
                                                             {"nemotron_h", 30},
                                                             {"granitemoehybrid", 34},
                                                             {"falcon_h1", 52},
                                                             {"lfm2", 28}}) {
    DecoderSpec spec = spec_of_made("tiny", family);
    if (spec.family == "falcon_h1") spec.multipliers.emplace().key = 0.5;
    expect_merged(spec, tensors);
  }
  expect_merged(preset_spec("tiny-moe"), 163);
}

TEST(AdaptersOfFamilies, WhatHasNoneIsRefusedByItsName) {
  const DecoderSpec spec = preset_spec("tiny-moe");
  const auto refusal = [&](const std::vector<testing_adapter::Module>& modules,
                           AdapterUser user = AdapterUser::cpu) -> std::string {
    const auto directory = std::filesystem::path(::testing::TempDir()) /
                           ("refused_adapter_" + std::to_string(::getpid()));
    const LoraAdapter adapter(testing_adapter::write(directory, modules, {}));
    try {
      expect_fits(adapter, spec, user);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const int64_t d = spec.hidden;
  const testing_adapter::Module query = {"model.layers.0.self_attn.q_proj", spec.query_width(), d};
  EXPECT_EQ(refusal({query}), "");
  auto again = query;  // under the name that it has in a model that reads images, too
  again.name = "model.language_model.layers.0.self_attn.q_proj";
  EXPECT_EQ(refusal({again}), "");
  EXPECT_NE(refusal({query, again}), "");
  for (const auto& module : std::vector<testing_adapter::Module>{
           {"model.layers.0.self_attn.q_proj", spec.query_width(), d + 1},
           {"model.layers.0.mlp.gate", 8, d},
           {"model.layers.0.mlp.experts.0.up_proj", 8, d},  // of another shape
           {"model.layers.0.mlp.experts.999.up_proj", 8, d},
           {"model.layers.99.self_attn.q_proj", spec.query_width(), d},
           {"model.embed_tokens", spec.vocab, d},
           {"lm_head", spec.vocab, d}}) {
    const std::string said = refusal({module});
    EXPECT_NE(said.find(json::quoted(module.name)), said.npos) << module.name << ": " << said;
  }
  const testing_adapter::Module of_expert = {"model.layers.0.mlp.experts.0.up_proj",
                                             spec.layer(0).experts()->width, d};
  EXPECT_EQ(refusal({of_expert}), "");
  EXPECT_NE(refusal({of_expert}, AdapterUser::gpu).find("are not computed on GPUs"),
            std::string::npos);
  EXPECT_NE(refusal({of_expert}, AdapterUser::trainer), "");
}

TEST(AdaptersOfFamilies, AStackIsOfAllExperts) {
  const DecoderSpec spec = preset_spec("tiny-moe");
  const ExpertsSpec& experts = *spec.layer(0).experts();
  const auto directory = std::filesystem::path(::testing::TempDir()) /
                         ("stacked_adapter_" + std::to_string(::getpid()));
  testing_adapter::Stacks stacks{.module = "model.layers.0.mlp.experts",
                                 .experts = experts.routing.experts,
                                 .hidden = static_cast<int>(spec.hidden),
                                 .width = static_cast<int>(experts.width)};
  EXPECT_NO_THROW(expect_fits(LoraAdapter(stacks.write(directory)), spec, AdapterUser::cpu));
  --stacks.experts;
  try {
    expect_fits(LoraAdapter(stacks.write(directory)), spec, AdapterUser::cpu);
    ADD_FAILURE() << "an expert has none";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("expected an adapter of each of"), std::string::npos);
  }
}

}  // namespace
}  // namespace invar
