// gpt-oss: experts with biases and a clamped activation, attention with sinks, every second layer
// with a window. All experts stand in one tensor, gate and up in turn.
#include <fmt/format.h>

#include "base/error.h"
#include "model/families/experts.h"

namespace invar {

namespace {

constexpr Routing kRouting{.score = ExpertScore::softmax_of_chosen};

// Sets the choices that every layer has, whatever the configuration says.
void imply(DecoderSpec& spec) {
  spec.qkv_bias = spec.o_bias = true;
  imply_experts(spec, kRouting);
  change_layers(spec, [](LayerSpec& layer) {
    layer.attention()->has_sinks = true;
    if (!layer.experts()) return;
    layer.experts()->has_biases = true;
    layer.experts()->curve = Nonlinearity::clamped;
  });
}

void read(ConfigReader& reader, DecoderSpec& spec) {
  // Another library would take numbers of its own here.
  for (const char* key : {"rope_parameters", "sliding_window"})
    if (!reader.has(key) && !(key[0] == 'r' && reader.has("rope_scaling")))
      fail("{}: the key {} is missing", reader.where(), json::quoted(key));
  spec.qkv_bias = spec.o_bias = reader.boolean("attention_bias", true);
  check_neutral(reader, "swiglu_limit", 7);
  check_neutral(reader, "swiglu_alpha", 1.702);
  const std::string_view elsewhere[] = {"initial_context_length"};  // rope_scaling says it, too
  reader.ignore(elsewhere);
  ExpertsSpec experts{.routing = read_routing(reader, "num_local_experts", 128, 4),
                      .width = read_size(reader, "intermediate_size", kMaxWidth, 2880),
                      .has_biases = true,
                      .curve = Nonlinearity::clamped};
  experts.routing.score = kRouting.score;
  check_neutral(reader, "experts_per_token", experts.routing.chosen);
  set_experts(spec, experts, [](int) { return true; });
}

void write(const DecoderSpec& spec, json::Value& config) {
  config.set("num_local_experts", experts_of(spec).routing.experts);
  config.set("num_experts_per_tok", experts_of(spec).routing.chosen);
  config.set("swiglu_limit", 7.0);
  if (!config.find("rope_scaling") && !config.find("rope_parameters"))
    config.set("rope_scaling", json::Value());
}

// In MXFP4 inputs are columns, [experts][N][K].
StoredAt stored_in_blocks(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  const bool is_down = tensor.role == expert_down;
  if (tensor.expert < 0 || tensor.shape.size() != 2) return {tensor.name};
  const int64_t step = is_down ? 1 : 2, rows = step * tensor.shape[0];
  const int64_t first = tensor.expert * rows + (tensor.role == expert_up ? 1 : 0);
  return {.tensor = fmt::format("model.layers.{}.mlp.experts.{}_blocks", tensor.layer,
                                is_down ? "down_proj" : "gate_up_proj"),
          .row = [=](int64_t row) { return first + row * step; },
          .shape = {spec.layer(tensor.layer).experts()->routing.experts, rows, tensor.shape[1]}};
}

// An expert's matrices are stored with inputs as rows, [experts][K][N].
StoredAt stored_expert(const DecoderSpec& spec, const TensorSpec& tensor, const std::string& at) {
  using enum TensorRole;
  const bool is_matrix = tensor.shape.size() == 2;
  const bool is_down = tensor.role == expert_down || tensor.role == expert_down_bias;
  const bool is_up = tensor.role == expert_up || tensor.role == expert_up_bias;
  const int64_t experts = spec.layer(tensor.layer).experts()->routing.experts;
  const int64_t step = is_down ? 1 : 2, column = is_up ? 1 : 0;
  const int64_t outputs = step * tensor.shape[0], inputs = is_matrix ? tensor.shape[1] : 1;
  StoredAt place{.tensor = at + (is_down ? "experts.down_proj" : "experts.gate_up_proj")};
  if (is_matrix) {
    const int64_t first = tensor.expert * inputs;
    place.row = [first](int64_t) { return first; };
    place.shape = {experts, inputs, outputs};
    place.is_transposed = true;
    place.column = column;
    place.step = step;
    return place;
  }
  const int64_t first = tensor.expert * outputs + column;
  place.tensor += "_bias";
  place.row = [=](int64_t row) { return first + row * step; };
  place.shape = {experts, outputs};
  return place;
}

StoredAt stored(const DecoderSpec& spec, const TensorSpec& tensor) {
  if (tensor.layer < 0 || !spec.layer(tensor.layer).experts()) return {tensor.name};
  const std::string at = fmt::format("model.layers.{}.mlp.", tensor.layer);
  if (tensor.role == TensorRole::router) return {at + "router.weight"};
  if (tensor.role == TensorRole::router_bias) return {at + "router.bias"};
  return tensor.expert < 0 ? StoredAt{tensor.name} : stored_expert(spec, tensor, at);
}

}  // namespace

extern const Family kGptOss{.name = "gpt_oss",
                            .architecture = "GptOssForCausalLM",
                            .has_attention_bias = true,
                            .head_dim = 64,
                            .windows = WindowRule::pattern,
                            .pattern = 2,
                            .theta = 150000,
                            .read = read,
                            .write = write,
                            .stored = stored,
                            .stored_otherwise = stored_in_blocks,
                            .imply = imply};

}  // namespace invar
