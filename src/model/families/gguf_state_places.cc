#include "model/families/gguf_state_places.h"

#include <algorithm>
#include <utility>

#include "model/families/gguf_places.h"

namespace invar {

namespace {

// Names in layers of Kimi Delta Attention, where they are others.
constexpr std::pair<TensorRole, const char*> kDeltaNames[] = {
    {TensorRole::recurrent_q, "attn_q.weight"},
    {TensorRole::recurrent_k, "attn_k.weight"},
    {TensorRole::recurrent_v, "attn_v.weight"},
    {TensorRole::decay_down, "ssm_f_a.weight"},
    {TensorRole::recurrent_decay, "ssm_f_b.weight"},
    {TensorRole::gate_down, "ssm_g_a.weight"},
    {TensorRole::recurrent_gate, "ssm_g_b.weight"},
    {TensorRole::recurrent_factor, "ssm_beta.weight"},
    {TensorRole::conv_q, "ssm_conv1d_q.weight"},
    {TensorRole::conv_k, "ssm_conv1d_k.weight"},
    {TensorRole::conv_v, "ssm_conv1d_v.weight"},
    {TensorRole::recurrent_o, "attn_output.weight"},
};

// All that a state space reads stands in one tensor there.
constexpr const char* kStateSpaceInputs = "ssm_in.weight";

bool is_tap(TensorRole role) {
  return role == TensorRole::conv_q || role == TensorRole::conv_k || role == TensorRole::conv_v ||
         role == TensorRole::conv_tap;
}

// Qwen 3.5's value heads: the first one of every key head, then every second one.
std::function<int64_t(int64_t)> in_turn(const RecurrentSpec& r, int64_t rows, int64_t first = 0) {
  return [=, keys = r.key_heads, each = r.heads / r.key_heads](int64_t row) {
    const int64_t head = row / rows;
    return first + (head % each * keys + head / each) * rows + row % rows;
  };
}

void put_heads_in_turn(const RecurrentSpec& r, const TensorSpec& tensor, StoredAt& at) {
  switch (tensor.role) {
    case TensorRole::recurrent_v:
      at.row = in_turn(r, r.value_size, 2 * r.key_width());
      break;
    case TensorRole::recurrent_gate:
      at.row = in_turn(r, r.value_size);
      break;
    case TensorRole::recurrent_factor:
    case TensorRole::recurrent_decay:
    case TensorRole::decay_bias:
    case TensorRole::decay_rate:
      at.row = in_turn(r, 1);
      break;
    case TensorRole::conv_v:
      at.row = [taps = at.row, channel = in_turn(r, r.value_size)](int64_t row) {
        return taps(channel(row));
      };
      break;
    case TensorRole::recurrent_o: {
      const auto head = in_turn(r, 1);
      at.pieces.size = r.value_size;
      for (int h = 0; h < r.heads; ++h) at.pieces.from.push_back(head(h));
      break;
    }
    default:
      break;
  }
}

}  // namespace

const char* gguf_state_name(const DecoderSpec& spec, const TensorSpec& tensor) {
  if (tensor.layer < 0) return nullptr;
  const LayerSpec layer = spec.layer(tensor.layer);
  if (layer.find<ChannelDeltaSpec>()) {
    const auto is_it = [&](const auto& one) { return one.first == tensor.role; };
    const auto* found = std::ranges::find_if(kDeltaNames, is_it);
    return found == std::end(kDeltaNames) ? nullptr : found->second;
  }
  const bool is_input =
      tensor.role >= TensorRole::recurrent_q && tensor.role <= TensorRole::recurrent_decay;
  if (is_input && layer.find<StateSpaceSpec>()) return kStateSpaceInputs;
  if (!spec.family.starts_with("qwen3_5")) return nullptr;
  if (tensor.role == TensorRole::recurrent_factor) return "ssm_beta.weight";
  return tensor.role == TensorRole::recurrent_decay ? "ssm_alpha.weight" : nullptr;
}

bool is_of_state(const DecoderSpec& spec, const TensorSpec& tensor) {
  if (tensor.layer < 0) return false;
  const LayerSpec layer = spec.layer(tensor.layer);
  const bool has_state = layer.find<RecurrentSpec>() || layer.find<StateSpaceSpec>() ||
                         layer.find<ShortConvSpec>() || layer.find<ChannelDeltaSpec>();
  return has_state &&
         (tensor.role == TensorRole::q_gate ||
          (tensor.role >= TensorRole::recurrent_q && tensor.role <= TensorRole::head_norm));
}

// A layer with a state has rows as in directories and taps as [channels][taps]; a state space's
// numbers of heads, and the weights of its norm, have two dimensions.
StoredAt gguf_state_place(const DecoderSpec& spec, const TensorSpec& tensor) {
  const LayerSpec layer = spec.layer(tensor.layer);
  StoredAt at = family_of(spec).stored(spec, tensor);
  at.tensor = gguf_name(spec, tensor);
  at.is_plus_one = false;
  if (is_tap(tensor.role))
    at.shape = layer.find<ChannelDeltaSpec>() ? std::vector<int64_t>{1, at.shape[0], 1, at.shape[2]}
                                              : std::vector<int64_t>{at.shape[0], at.shape[2]};
  at.is_exponential = tensor.role == TensorRole::decay_rate;
  if (const RecurrentSpec* r = layer.find<RecurrentSpec>()) {
    const auto behind = [](int64_t first) { return [=](int64_t row) { return first + row; }; };
    if (tensor.role == TensorRole::recurrent_q) at.row = behind(0);
    if (tensor.role == TensorRole::recurrent_k) at.row = behind(r->key_width());
    if (tensor.role == TensorRole::recurrent_v) at.row = behind(2 * r->key_width());
    if (tensor.role == TensorRole::recurrent_gate) at.row = {};
    if (spec.family.starts_with("qwen3_5") && r->heads != r->key_heads)
      put_heads_in_turn(*r, tensor, at);
  }
  if (const StateSpaceSpec* s = layer.find<StateSpaceSpec>()) {
    const bool is_of_heads =
        tensor.role == TensorRole::decay_rate || tensor.role == TensorRole::skip;
    if (is_of_heads) at.shape = {s->heads, 1};
    if (tensor.role == TensorRole::head_norm) at.shape = {s->groups, s->width() / s->groups};
  }
  return at;
}

}  // namespace invar
