// A tiny model with random weights and a batch of examples for it, run forward and backward.
#pragma once

#include <cmath>
#include <memory>
#include <random>

#include "decoder_f64.h"
#include "kernels/select.h"
#include "model/backward.h"
#include "model/forward.h"
#include "model/parameter_source.h"

namespace invar {

struct TinyModel {
  const char* name;
  DecoderSpec spec;
};
inline void PrintTo(const TinyModel& model, std::ostream* out) {
  *out << model.name;
}

inline DecoderSpec tiny_spec(const char* family) {
  DecoderSpec spec{.family = family,
                   .hidden = 48,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .head_dim = 16,
                   .vocab = 53,
                   .max_positions = 256,
                   .norm_eps = 1e-5f};
  spec.set_layers({.parts = {AttentionSpec{}, DenseFfnSpec{.width = 72}}});
  return spec;
}

// Every family, odd sizes, every kind of parameter.
inline std::vector<TinyModel> tiny_models() {
  DecoderSpec llama = tiny_spec("llama");
  llama.o_bias = llama.qkv_bias = llama.mlp_bias = true;
  for (LayerSpec& layer : llama.layer_specs)
    layer.attention()->rope = {.scaling = RopeSpec::Scaling::linear, .factor = 2.0};
  DecoderSpec mistral = tiny_spec("mistral");
  mistral.layer_specs[0].attention()->window = 7;
  mistral.layer_specs[1].attention()->window = 33;
  mistral.kv_heads = 1;
  DecoderSpec qwen2 = tiny_spec("qwen2");
  qwen2.qkv_bias = true;
  qwen2.tied_head = true;
  qwen2.head_dim = 10;
  DecoderSpec qwen3 = tiny_spec("qwen3");
  qwen3.qk_norm = true;
  qwen3.tied_head = true;
  qwen3.hidden = 64;
  qwen3.set_layers({.parts = {AttentionSpec{}, DenseFfnSpec{.width = 96}}});
  DecoderSpec llama_mtp = llama, qwen3_mtp = qwen3;
  llama_mtp.hidden = 64;
  llama_mtp.mtp_layers = qwen3_mtp.mtp_layers = 1;
  DecoderSpec experts = tiny_spec("qwen3_moe");
  experts.qk_norm = true;
  experts.layer_specs[0].put(
      ExpertsSpec{.routing = {.experts = 5, .chosen = 2, .renormalised = true}, .width = 40});
  DecoderSpec plain_experts = experts;
  plain_experts.set_layers(experts.layer_specs[0]);
  plain_experts.layer_specs[1].put(
      ExpertsSpec{.routing = {.experts = 4, .chosen = 3}, .width = 33});
  return {{"llama", llama},         {"mistral", mistral},
          {"qwen2", qwen2},         {"qwen3", qwen3},
          {"llama_mtp", llama_mtp}, {"qwen3_mtp", qwen3_mtp},
          {"experts", experts},     {"plain_experts", plain_experts}};
}

// Norms behind a part, of all heads together, and LayerNorms; curves other than silu; parts beside
// each other; a scaled embedding; two rotations.
inline std::vector<TinyModel> tiny_models_of_other_norms() {
  DecoderSpec gemma3 = tiny_spec("gemma3_text"), olmo2 = tiny_spec("olmo2"),
              falcon = tiny_spec("falcon");
  gemma3.qk_norm = gemma3.tied_head = true;
  gemma3.embedding_scale = 6.5f;
  for (LayerSpec& layer : gemma3.layer_specs) {
    layer.attention()->norms = layer.ffn()->norms = NormPlace::both;
    layer.attention()->score_scale = 0.31;
    layer.ffn()->curve = Nonlinearity::gelu_tanh;
  }
  gemma3.layer_specs[0].attention()->window = 9;
  gemma3.layer_specs[1].attention()->rope = {
      .theta = 1e6, .scaling = RopeSpec::Scaling::linear, .factor = 8};
  olmo2.qk_norm = olmo2.joint_qk_norm = true;
  for (LayerSpec& layer : olmo2.layer_specs)
    layer.attention()->norms = layer.ffn()->norms = NormPlace::after;
  falcon.norm = NormKind::layer;
  falcon.kv_heads = 1;
  for (LayerSpec& layer : falcon.layer_specs) {
    layer.ffn()->is_gated = false;
    layer.ffn()->is_parallel = true;
    layer.ffn()->curve = Nonlinearity::gelu;
  }
  DecoderSpec exaone4 = tiny_spec("exaone4"), olmoe = tiny_spec("olmoe");
  exaone4.qk_norm = true;
  exaone4.layer_specs = olmo2.layer_specs;
  olmoe.qk_norm = olmoe.joint_qk_norm = true;
  olmoe.layer_specs[1].put(ExpertsSpec{.routing = {.experts = 5, .chosen = 2}, .width = 40});
  return {{"gemma3", gemma3},
          {"olmo2", olmo2},
          {"falcon", falcon},
          {"exaone4", exaone4},
          {"olmoe", olmoe}};
}

// Experts beside one that all rows go through, with a gate and without; a router whose scores are
// not shares, in groups, with a bias of the choice; one with an epsilon.
inline std::vector<TinyModel> tiny_models_of_experts() {
  DecoderSpec shared = tiny_spec("qwen2_moe"), groups = tiny_spec("glm4_moe"),
              epsilon = tiny_spec("lfm2_moe");
  shared.qkv_bias = groups.qkv_bias = true;
  epsilon.qk_norm = epsilon.tied_head = true;
  ExpertsSpec experts{.routing = {.experts = 5, .chosen = 3}, .width = 40};
  experts.shared_width = 56;
  experts.shared_gate = true;
  shared.set_layers({.parts = {AttentionSpec{}, experts}});
  experts.routing = {.experts = 8,
                     .chosen = 3,
                     .score = ExpertScore::sigmoid,
                     .groups = 4,
                     .chosen_groups = 2,
                     .pair_score = true,
                     .renormalised = true,
                     .scale = 1.5f};
  experts.shared_gate = false;
  experts.has_choice_bias = true;
  groups.layer_specs[1].put(experts);
  experts.routing = {.experts = 6,
                     .chosen = 2,
                     .score = ExpertScore::sigmoid,
                     .renormalised = true,
                     .epsilon = 0.25f};
  experts.shared_width = 0;
  epsilon.layer_specs[1].put(experts);
  return {{"shared_expert", shared}, {"expert_groups", groups}, {"expert_epsilon", epsilon}};
}

// A layer with a state beside one that attends, and alone. A sequence's first rows have outputs
// near zero, which a norm with a small epsilon would make as large as their rounding.
inline std::vector<TinyModel> tiny_models_with_states() {
  DecoderSpec lfm2 = tiny_spec("lfm2");
  lfm2.qk_norm = lfm2.tied_head = true;
  DecoderSpec delta = lfm2, mamba = lfm2;
  lfm2.layer_specs[0].put(ShortConvSpec{.taps = 3});
  delta.family = "qwen3_5_text";
  for (LayerSpec& layer : delta.layer_specs) layer.attention()->has_output_gate = true;
  DecoderSpec doubled = delta;
  RecurrentSpec heads{
      .key_heads = 2, .heads = 4, .key_size = 24, .value_size = 20, .taps = 4, .norm_eps = 0.5f};
  delta.layer_specs[0].put(heads);
  heads.doubles = true;
  doubled.layer_specs[1].put(heads);
  mamba.family = "granitemoehybrid";
  mamba.qk_norm = false;
  mamba.norm_eps = 0.01f;
  StateSpaceSpec states{.groups = 2,
                        .heads = 4,
                        .state_size = 24,
                        .head_size = 20,
                        .taps = 4,
                        .norm_groups = 2,
                        .conv_bias = true,
                        .least_step = 0.01f};
  mamba.layer_specs[0].put(states);
  DecoderSpec channels = lfm2;
  channels.family = "kimi_linear";
  channels.qk_norm = false;
  channels.norm_eps = 0.01f;
  for (LayerSpec& layer : channels.layer_specs)
    layer.put(ChannelDeltaSpec{.heads = 4, .size = 24, .taps = 4});
  DecoderSpec alone = mamba;
  states.norm_groups = 1, states.conv_bias = false;
  alone.family = "nemotron_h";
  alone.layers = 3;
  alone.layer_specs = {{.parts = {states}},
                       {.parts = {DenseFfnSpec{
                            .width = 72, .curve = Nonlinearity::relu_squared, .is_gated = false}}},
                       {.parts = {AttentionSpec{.rope = std::nullopt}}}};
  // A module that reads what the head reads.
  DecoderSpec delta_mtp = delta;
  delta_mtp.hidden = 64;
  delta_mtp.mtp_layers = 1;
  return {{"lfm2", lfm2},
          {"gated_delta", delta},
          {"doubled_delta", doubled},
          {"channel_delta", channels},
          {"state_space", mamba},
          {"state_space_alone", alone},
          {"gated_delta_mtp", delta_mtp}};
}

// Attention to latents: with a vector of its own for queries and without, with a rotation and
// without, of the sizes of DeepSeek's heads.
inline std::vector<TinyModel> tiny_models_with_latents() {
  const auto of = [](const char* family, const LatentSpec& latent) {
    DecoderSpec spec = tiny_spec(family);
    spec.kv_heads = 1;
    spec.head_dim = latent.rank + latent.rope;
    for (LayerSpec& layer : spec.layer_specs) {
      AttentionSpec& attention = *layer.attention();
      attention.latent = latent;
      attention.rope = RopeSpec{.rotated = latent.rope};
      attention.score_scale = 1 / std::sqrt(static_cast<double>(latent.nope + latent.rope));
    }
    return spec;
  };
  DecoderSpec v3 =
      of("deepseek_v3",
         {.rank = 32, .rope = 8, .nope = 32, .value = 64, .query_rank = 40, .norm_eps = 1e-3f});
  DecoderSpec v2 = of("deepseek_v2", {.rank = 64, .rope = 12, .nope = 32, .value = 32});
  DecoderSpec still = v2;
  still.family = "kimi_linear";
  for (LayerSpec& layer : still.layer_specs) layer.attention()->rope = std::nullopt;
  DecoderSpec wide =
      of("deepseek_v3", {.rank = 512, .rope = 64, .nope = 64, .value = 32, .query_rank = 96});
  wide.heads = 2;
  wide.layers = 1;
  wide.layer_specs.pop_back();
  return {{"latents", v3}, {"latents_alone", v2}, {"still_latents", still}, {"wide_latents", wide}};
}

// Weights of bf16 in a layout; norms near 1.
inline std::vector<bf16_t> random_weights(const ParameterLayout& layout, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bf16_t> weights(layout.size());
  for (const ParameterLayout::Slot& slot : layout.slots()) {
    const bool is_matrix = slot.tensor.shape.size() == 2;
    const bool is_norm = slot.tensor.name.find("norm") != std::string::npos;
    const float deviation =
        is_matrix ? 1.2f / std::sqrt(static_cast<float>(slot.tensor.shape[1])) : 0.3f;
    // States that last over boundaries.
    const float mean = slot.tensor.role == TensorRole::decay_bias ? -4.0f : is_norm ? 1.0f : 0.0f;
    for (int64_t i = 0; i < slot.count; ++i)
      weights[slot.offset + i] = f32_to_bf16(mean + deviation * normal(random));
  }
  return weights;
}

// Sequences whose lengths add up to a multiple of 32; some positions have no weight.
inline std::vector<Example> random_examples(const DecoderSpec& spec, std::vector<int> lengths,
                                            uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Example> examples;
  for (const int length : lengths) {
    Example example;
    for (int i = 0; i < length; ++i) {
      example.tokens.push_back(static_cast<int32_t>(random() % spec.vocab));
      example.targets.push_back(static_cast<int32_t>(random() % spec.vocab));
      example.weights.push_back(random() % 4 ? 0x1p-5 * (1 + random() % 3) : 0.0);
    }
    examples.push_back(example);
  }
  if (spec.mtp_layers > 0)
    for (Example& example : examples)
      for (size_t i = 0; i < example.tokens.size(); ++i) {
        example.next.push_back(static_cast<int32_t>(random() % spec.vocab));
        example.mtp_targets.push_back(static_cast<int32_t>(random() % spec.vocab));
        example.mtp_weights.push_back(random() % 4 ? 0x1p-6 * (1 + random() % 3) : 0.0);
      }
  return examples;
}

// One model with room for batches of `max_rows` rows.
class TrainingCase {
 public:
  TrainingCase(const DecoderSpec& spec, const std::vector<bf16_t>& weights, int max_rows,
               const char* instruction_set = "scalar", int threads = 1, bool recompute = false)
      : spec_(spec),
        layout_(spec),
        device_(make_host_device()),
        pool_(threads),
        kernels_(select_training_kernels(Order::portable, instruction_set)),
        decoder_weights_(spec, {}, make_shard(spec, 0, 1), ParameterSource(layout_, weights.data()),
                         *device_, pool_),
        decoder_(spec, {}, select_kernels(Order::portable, instruction_set), decoder_weights_,
                 *device_, &pool_),
        transposed_(spec, *device_),
        kv_(*device_, states_of(spec, {}, {0, spec.all_layers()}),
            {.blocks = max_rows / 32 + 32,
             .block_size = 32,
             .cells = has_states(spec) ? kMostExamples : 0,
             .scratch = {.chunks = max_rows / 64}}),
        forward_workspace_(decoder_, max_rows, max_rows),
        tape_(decoder_, kernels_, max_rows, recompute),
        workspace_(decoder_, kernels_, max_rows, max_rows),
        gradients_(layout_.gradient_size() + spec.mtp_layers * (2 * vocabulary() + spec.hidden)) {
    transposed_.update(weights.data(), layout_, kernels_, decoder_.execution);
  }

  static constexpr int kMostExamples = 8;
  BalanceLoss balance;

  const ParameterLayout& layout() const { return layout_; }
  const std::vector<float>& gradients() const { return gradients_; }

  // Forward and backward of the examples; gradients go on from what they are. Returns the examples
  // with the experts that they went through.
  std::vector<Example> run(std::vector<Example> examples) {
    Batch batch, mtp_batch;
    std::vector<int32_t> targets, next, mtp_targets;
    std::vector<float> weights, mtp_weights;
    int32_t block = 0;
    for (const Example& example : examples) {
      const int32_t sequence = static_cast<int32_t>(batch.sequences.size());
      batch.sequences.push_back({.cell = sequence});
      for (size_t i = 0; i < example.tokens.size(); ++i) {
        if (i % 32 == 0) batch.sequences.back().blocks.push_back(block++);
        batch.logit_rows.push_back(static_cast<int32_t>(batch.rows.size()));
        batch.rows.push_back({example.tokens[i], static_cast<int32_t>(i), sequence});
      }
      const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(targets, example.targets), append(weights, example.weights);
      append(mtp_targets, example.mtp_targets), append(mtp_weights, example.mtp_weights);
      append(next, example.next);
    }
    ForwardIo forward_io{.tape = &tape_};
    batch.wants_experts = true;
    forward(decoder_, batch, kv_, forward_workspace_, solo_group(), forward_io);
    batch.wants_experts = false;
    name_experts(forward_io.experts, examples);
    std::vector<bf16_t> memory, mtp_memory;
    BackwardIo io{.tape = &tape_,
                  .d_logits = loss_gradient(forward_io.logits, targets, weights, memory),
                  .gradients = gradients_.data(),
                  .balance = balance.weight,
                  .balance_rows = balance.rows,
                  .forward_workspace = &forward_workspace_};
    MtpGradient mtp;
    std::vector<int32_t> own_rows;
    if (spec_.mtp_layers > 0) {
      mtp_batch = batch;
      mtp_batch.layer_begin = spec_.layers;
      mtp_batch.layer_end = spec_.all_layers();
      for (size_t t = 0; t < next.size(); ++t) mtp_batch.rows[t].token = next[t];
      own_rows = place_own(examples);
      forward_io.hidden = {tape_.module_input(), next.size() * spec_.hidden};
      forward(decoder_, mtp_batch, kv_, forward_workspace_, solo_group(), forward_io);
      float* chains = gradients_.data() + layout_.gradient_size();
      mtp = {.batch = &mtp_batch,
             .own_rows = own_rows,
             .d_logits = loss_gradient(forward_io.logits, mtp_targets, mtp_weights, mtp_memory),
             .head = chains,
             .embedding = chains + vocabulary(),
             .final_norm = chains + 2 * vocabulary()};
      io.mtp = &mtp;
    }
    backward(decoder_, transposed_, kernels_, layout_, batch, kv_, workspace_, io);
    return examples;
  }

  // The gradients as an optimizer sees them: every use of a tensor added.
  std::vector<float> total() const {
    std::vector<float> sum(gradients_.begin(), gradients_.begin() + layout_.size());
    const auto add = [&](TensorRole role, int64_t from) {
      for (int64_t i = 0; i < vocabulary(); ++i)
        sum[layout_.offset(role) + i] += gradients_[from + i];
    };
    const TensorRole head = spec_.tied_head ? TensorRole::embedding : TensorRole::head;
    if (spec_.tied_head) add(head, layout_.offset(TensorRole::head));
    if (spec_.mtp_layers == 0) return sum;
    add(head, layout_.gradient_size());
    add(TensorRole::embedding, layout_.gradient_size() + vocabulary());
    const int64_t norm = layout_.offset(TensorRole::final_norm);
    const auto from = gradients_.begin() + layout_.gradient_size() + 2 * vocabulary();
    for (int64_t i = 0; i < spec_.hidden; ++i) sum[norm + i] += from[i];
    return sum;
  }

 private:
  int64_t vocabulary() const { return int64_t{spec_.vocab} * spec_.hidden; }

  // The rows that go on from what the examples say.
  std::vector<int32_t> place_own(const std::vector<Example>& examples) {
    std::vector<int32_t> rows;
    int32_t first = 0;
    for (const Example& example : examples) {
      for (const auto& [t, left] : example.own) {
        rows.push_back(first + t);
        std::ranges::copy(left, tape_.module_input() + int64_t{rows.back()} * spec_.hidden);
      }
      first += static_cast<int32_t>(example.tokens.size());
    }
    return rows;
  }

  // `ids` are those of all layers, one after the other, of all examples' positions.
  void name_experts(std::span<const int32_t> ids, std::vector<Example>& examples) const {
    for (int layer = 0; layer < spec_.layers; ++layer)
      for (Example& example : examples) {
        const auto chosen = static_cast<size_t>(spec_.layer(layer).chosen_experts());
        const size_t count = example.tokens.size() * chosen;
        if (count == 0) continue;
        example.experts[layer].assign(ids.begin(), ids.begin() + static_cast<int64_t>(count));
        ids = ids.subspan(count);
      }
  }

  Activation loss_gradient(std::span<const float> logits, const std::vector<int32_t>& targets,
                           const std::vector<float>& weights, std::vector<bf16_t>& memory) {
    const int64_t rows = std::ssize(targets);
    std::vector<int32_t> argmax(rows);
    std::vector<float> max(rows), log_sum(rows);
    const auto has_nan = std::make_unique<bool[]>(rows);
    decoder_.run(decoder_.kernels.log_sum_exp, LogitsParams{.logits = logits.data(),
                                                            .rows = rows,
                                                            .stride = spec_.vocab,
                                                            .vocab = spec_.vocab,
                                                            .argmax = argmax.data(),
                                                            .max = max.data(),
                                                            .log_sum = log_sum.data(),
                                                            .has_nan = has_nan.get()});
    memory.resize(rows * activation_stride(spec_.vocab));
    const Activation out{memory.data(), DType::bf16, activation_stride(spec_.vocab)};
    decoder_.run(kernels_.loss, LossParams{.logits = logits.data(),
                                           .rows = rows,
                                           .stride = spec_.vocab,
                                           .vocab = spec_.vocab,
                                           .max = max.data(),
                                           .log_sum = log_sum.data(),
                                           .targets = targets.data(),
                                           .weights = weights.data(),
                                           .teacher = nullptr,
                                           .out = out});
    return out;
  }

  DecoderSpec spec_;
  ParameterLayout layout_;
  std::unique_ptr<Device> device_;
  ThreadPool pool_;
  TrainingKernels kernels_;
  DecoderWeights decoder_weights_;
  Decoder decoder_;
  TransposedWeights transposed_;
  SequenceStore kv_;
  Workspace forward_workspace_;
  Tape tape_;
  BackwardWorkspace workspace_;
  std::vector<float> gradients_;
};

}  // namespace invar
