#include "model/families/make_model.h"

#include <cmath>
#include <optional>

#include "base/atomic_file.h"
#include "model/families/family_source.h"
#include "model/families/tensors.h"
#include "weights/dummy_source.h"

namespace invar {

namespace {

constexpr double kLogitDeviation = 2.5;
// Scores of attention with this deviation, squared, make a softmax that is neither flat nor a
// choice of one place.
constexpr double kQueryKeyGain = 1.7;
// A tied head meets its own embedding in the residual stream and would repeat the last token: the
// embedding is made small and the last norm makes up for it.
constexpr double kTiedFinalNorm = 5;

// Scores that are not divided by sqrt(E) get smaller factors instead.
double query_key_gain(const TensorSpec& tensor, const DecoderSpec& spec) {
  const LayerSpec layer = spec.layer(tensor.layer);
  const AttentionSpec* attention = layer.attention();
  const bool is_undivided = attention && attention->score_scale == 1;
  return is_undivided ? kQueryKeyGain / std::sqrt(std::sqrt(static_cast<double>(tensor.shape[0])))
                      : kQueryKeyGain;
}

// How the elements of one tensor are distributed.
struct Distribution {
  double mean, deviation;
};

bool is_bias(TensorRole role) {
  switch (role) {
    case TensorRole::q_bias:
    case TensorRole::k_bias:
    case TensorRole::v_bias:
    case TensorRole::o_bias:
    case TensorRole::gate_bias:
    case TensorRole::up_bias:
    case TensorRole::down_bias:
    case TensorRole::router_bias:
    case TensorRole::expert_gate_bias:
    case TensorRole::expert_up_bias:
    case TensorRole::expert_down_bias:
    case TensorRole::fuse_bias:
    case TensorRole::projection_bias:
    case TensorRole::block_bias:
    case TensorRole::input_norm_bias:
    case TensorRole::post_norm_bias:
    case TensorRole::final_norm_bias:
    case TensorRole::index_key_norm_bias:
      return true;
    default:
      return false;
  }
}

// How the numbers are made that heads with a state have beside matrices.
std::optional<Distribution> recurrent_distribution(TensorRole role) {
  switch (role) {
    case TensorRole::conv_q:
    case TensorRole::conv_k:
    case TensorRole::conv_v:
      return Distribution{0, 0.5};
    case TensorRole::decay_bias:  // most heads remember some chunks
      return Distribution{-4, 1};
    case TensorRole::decay_rate:
      return Distribution{0, 0.5};
    default:
      return std::nullopt;
  }
}

Distribution distribution_of(const TensorSpec& tensor, const DecoderSpec& spec) {
  if (is_bias(tensor.role)) return {0, 0.05};
  if (const auto of_state = recurrent_distribution(tensor.role)) return *of_state;
  const double inner = static_cast<double>(tensor.shape.back());  // of a matrix
  const double head = kLogitDeviation / std::sqrt(spec.hidden);
  switch (tensor.role) {
    case TensorRole::embedding:
      return {0, spec.tied_head ? head / kTiedFinalNorm : 1.0};
    case TensorRole::head:
      return {0, head};
    case TensorRole::q:
    case TensorRole::k:
      return {0, (spec.qk_norm ? 1.0 : kQueryKeyGain) / std::sqrt(inner)};
    case TensorRole::o:
    case TensorRole::recurrent_o:
    case TensorRole::down:  // their sum over all layers stays near 1
    case TensorRole::expert_down:
    case TensorRole::shared_down:
      return {0, 1 / std::sqrt(inner * 2 * spec.layers)};
    case TensorRole::router:  // neither all alike nor always the same expert
      return {0, spec.layer(tensor.layer).has_networks_beside() ? 1.5 : 1.5 / std::sqrt(inner)};
    case TensorRole::choice_bias:
      return {0, 0.1};
    case TensorRole::sinks:
      return {0, 1};
    case TensorRole::q_norm:
    case TensorRole::k_norm:
      return {query_key_gain(tensor, spec), 0.1};
    case TensorRole::layer_input_embedding:
      return {0, 1 / std::sqrt(static_cast<double>(spec.layer_input_width()))};
    case TensorRole::layer_input_norm:
    case TensorRole::own_input_out_norm:
    case TensorRole::layer_scalar:
    case TensorRole::router_norm:
    case TensorRole::expert_scale:
    case TensorRole::experts_norm:
    case TensorRole::experts_out_norm:
    case TensorRole::sum_out_norm:
    case TensorRole::input_norm:
    case TensorRole::attention_out_norm:
    case TensorRole::ffn_out_norm:
    case TensorRole::post_norm:
    case TensorRole::feature_norm:
    case TensorRole::embedding_norm:
    case TensorRole::hidden_norm:
    case TensorRole::query_norm:
    case TensorRole::latent_norm:
    case TensorRole::index_key_norm:
    case TensorRole::head_norm:
      return {1, 0.1};
    case TensorRole::final_norm:
    case TensorRole::mtp_head_norm:
      return {spec.tied_head ? kTiedFinalNorm : 1.0, 0.1};
    default:  // other matrices: outputs as large as inputs
      return {0, 1 / std::sqrt(inner)};
  }
}

// As a checkpoint of the family holds them.
std::unique_ptr<TensorSource> stored_weights(const DecoderSpec& spec, uint64_t seed) {
  std::vector<DummyTensor> tensors;
  for (const StoredTensor& tensor : stored_tensors(spec)) {
    const Distribution d = distribution_of(tensor.parts[0].of, spec);
    tensors.push_back({tensor.name, tensor.shape, d.mean - (tensor.parts[0].at.is_plus_one ? 1 : 0),
                       d.deviation});
  }
  return std::make_unique<DummySource>(tensors, seed);
}

}  // namespace

std::unique_ptr<TensorSource> dummy_weights(const DecoderSpec& spec, uint64_t seed) {
  return decoder_tensors(spec, stored_weights(spec, seed));
}

void write_model_texts(const std::string& directory, const ModelConfig& config,
                       const NamedTexts& tokenizer_files) {
  for (const auto& [name, text] : tokenizer_files)
    write_file_atomically(directory + "/" + name, text);
  write_file_atomically(directory + "/generation_config.json",
                        json::dump(generation_config_json(config), 2) + "\n");
  write_file_atomically(directory + "/config.json", json::dump(config_json(config), 2) + "\n");
}

void make_model(const std::string& directory, const ModelConfig& config, uint64_t seed,
                ThreadPool& pool, const NamedTexts& tokenizer_files,
                const CheckpointOptions& options) {
  check_spec(config.spec, "the model asked for");
  write_checkpoint(directory, *stored_weights(config.spec, seed), pool, options);
  write_model_texts(directory, config, tokenizer_files);
}

}  // namespace invar
