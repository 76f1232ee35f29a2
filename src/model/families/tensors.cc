#include "model/families/tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"

namespace invar {

namespace {

const char* suffix_of(TensorRole role) {
  switch (role) {
    case TensorRole::embedding:
      return "model.embed_tokens.weight";
    case TensorRole::input_norm:
      return "input_layernorm.weight";
    case TensorRole::q:
      return "self_attn.q_proj.weight";
    case TensorRole::k:
      return "self_attn.k_proj.weight";
    case TensorRole::v:
      return "self_attn.v_proj.weight";
    case TensorRole::q_bias:
      return "self_attn.q_proj.bias";
    case TensorRole::k_bias:
      return "self_attn.k_proj.bias";
    case TensorRole::v_bias:
      return "self_attn.v_proj.bias";
    case TensorRole::q_norm:
      return "self_attn.q_norm.weight";
    case TensorRole::k_norm:
      return "self_attn.k_norm.weight";
    case TensorRole::o:
      return "self_attn.o_proj.weight";
    case TensorRole::o_bias:
      return "self_attn.o_proj.bias";
    case TensorRole::post_norm:
      return "post_attention_layernorm.weight";
    case TensorRole::gate:
      return "mlp.gate_proj.weight";
    case TensorRole::up:
      return "mlp.up_proj.weight";
    case TensorRole::down:
      return "mlp.down_proj.weight";
    case TensorRole::gate_bias:
      return "mlp.gate_proj.bias";
    case TensorRole::up_bias:
      return "mlp.up_proj.bias";
    case TensorRole::down_bias:
      return "mlp.down_proj.bias";
    case TensorRole::mtp_embedding_norm:
      return "enorm.weight";
    case TensorRole::mtp_hidden_norm:
      return "hnorm.weight";
    case TensorRole::mtp_projection:
      return "eh_proj.weight";
    case TensorRole::mtp_head_norm:
      return "shared_head.norm.weight";
    case TensorRole::final_norm:
      return "model.norm.weight";
    case TensorRole::head:
      return "lm_head.weight";
  }
  return "";
}

class TensorList {
 public:
  void add(TensorRole role, int layer, std::vector<int64_t> shape) {
    tensors.push_back({role, layer, tensor_name(role, layer), std::move(shape)});
  }

  std::vector<TensorSpec> tensors;
};

void add_attention(TensorList& list, const DecoderSpec& spec, int layer) {
  const int64_t d = spec.hidden, q = spec.query_width(), kv = spec.kv_width();
  list.add(TensorRole::q, layer, {q, d});
  list.add(TensorRole::k, layer, {kv, d});
  list.add(TensorRole::v, layer, {kv, d});
  if (spec.qkv_bias) {
    list.add(TensorRole::q_bias, layer, {q});
    list.add(TensorRole::k_bias, layer, {kv});
    list.add(TensorRole::v_bias, layer, {kv});
  }
  if (spec.qk_norm) {
    list.add(TensorRole::q_norm, layer, {spec.head_dim});
    list.add(TensorRole::k_norm, layer, {spec.head_dim});
  }
  list.add(TensorRole::o, layer, {d, q});
  if (spec.o_bias) list.add(TensorRole::o_bias, layer, {d});
}

void add_mlp(TensorList& list, const DecoderSpec& spec, int layer) {
  const int64_t d = spec.hidden, f = spec.ffn;
  list.add(TensorRole::gate, layer, {f, d});
  list.add(TensorRole::up, layer, {f, d});
  list.add(TensorRole::down, layer, {d, f});
  if (spec.mlp_bias) {
    list.add(TensorRole::gate_bias, layer, {f});
    list.add(TensorRole::up_bias, layer, {f});
    list.add(TensorRole::down_bias, layer, {d});
  }
}

void check_tensor(const TensorSpec& expected, const DecoderSpec& spec, const TensorSource& source) {
  if (!source.has(expected.name))
    fail("{} is missing: expected shape [{}]", source.where(expected.name),
         fmt::join(expected.shape, ", "));
  const TensorInfo& info = source.info(expected.name);
  if (info.shape == expected.shape) return;
  const bool is_vocabulary =
      expected.role == TensorRole::embedding || expected.role == TensorRole::head;
  if (is_vocabulary && info.shape.size() == 2 && info.shape[1] == spec.hidden)
    fail("{}: expected a row for each of the {} tokens of config.json, found {}",
         source.where(expected.name), spec.vocab, info.shape[0]);
  fail("{}: expected shape [{}], found [{}]", source.where(expected.name),
       fmt::join(expected.shape, ", "), fmt::join(info.shape, ", "));
}

void add_layer(TensorList& list, const DecoderSpec& spec, int layer) {
  list.add(TensorRole::input_norm, layer, {spec.hidden});
  add_attention(list, spec, layer);
  list.add(TensorRole::post_norm, layer, {spec.hidden});
  add_mlp(list, spec, layer);
}

// Names as DeepSeek's checkpoints have them.
void add_mtp_module(TensorList& list, const DecoderSpec& spec) {
  const int64_t d = spec.hidden;
  list.add(TensorRole::mtp_embedding_norm, spec.layers, {d});
  list.add(TensorRole::mtp_hidden_norm, spec.layers, {d});
  list.add(TensorRole::mtp_projection, spec.layers, {d, 2 * d});
  add_layer(list, spec, spec.layers);
  list.add(TensorRole::mtp_head_norm, spec.layers, {d});
}

bool is_ignored(const DecoderSpec& spec, std::string_view name) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;  // computed; stored by old versions
  const auto is_module_s = [&](std::string_view what) {
    return spec.mtp_layers > 0 && name == fmt::format("model.layers.{}.{}", spec.layers, what);
  };
  return is_module_s("embed_tokens.weight") || is_module_s("shared_head.head.weight");
}

// The first element that differs between two tensors of one shape, or -1.
int64_t first_difference(const TensorSource& source, const std::string& a, const std::string& b) {
  constexpr int64_t kBlock = 4096;
  float x[kBlock], y[kBlock];
  const int64_t count = source.info(a).elements();
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t n = std::min(kBlock, count - i);
    source.read(a, i, n, DType::f32, x);
    source.read(b, i, n, DType::f32, y);
    if (std::memcmp(x, y, n * sizeof(float)) == 0) continue;
    for (int64_t j = 0; j < n; ++j)
      if (std::memcmp(x + j, y + j, sizeof(float)) != 0) return i + j;
  }
  return -1;
}

void check_tied_head(const DecoderSpec& spec, const TensorSource& source) {
  const std::string head = tensor_name(TensorRole::head);
  const std::string embedding = tensor_name(TensorRole::embedding);
  check_tensor({TensorRole::head, -1, head, {spec.vocab, spec.hidden}}, spec, source);
  const int64_t index = first_difference(source, head, embedding);
  if (index >= 0)
    fail("{}: config.json says tie_word_embeddings, but the head differs from {} in row {}",
         source.where(head), json::quoted(embedding), index / spec.hidden);
}

}  // namespace

std::string tensor_name(TensorRole role, int layer) {
  const bool outside =
      role == TensorRole::embedding || role == TensorRole::final_norm || role == TensorRole::head;
  CHECK(outside == (layer < 0), "a tensor is either in a layer or outside");
  return outside ? suffix_of(role) : fmt::format("model.layers.{}.{}", layer, suffix_of(role));
}

std::vector<TensorSpec> tensors_of(const DecoderSpec& spec) {
  TensorList list;
  list.add(TensorRole::embedding, -1, {spec.vocab, spec.hidden});
  for (int layer = 0; layer < spec.layers; ++layer) add_layer(list, spec, layer);
  list.add(TensorRole::final_norm, -1, {spec.hidden});
  if (!spec.tied_head) list.add(TensorRole::head, -1, {spec.vocab, spec.hidden});
  if (spec.mtp_layers > 0) add_mtp_module(list, spec);
  return list.tensors;
}

void check_tensors(const DecoderSpec& spec, const TensorSource& source) {
  std::set<std::string> expected;
  for (const TensorSpec& tensor : tensors_of(spec)) {
    check_tensor(tensor, spec, source);
    expected.insert(tensor.name);
  }
  const std::string head = tensor_name(TensorRole::head);
  if (spec.tied_head && source.has(head)) {
    check_tied_head(spec, source);
    expected.insert(head);
  }
  for (const std::string& name : source.names())
    if (!expected.contains(name) && !is_ignored(spec, name))
      fail("{} has no place in the {} model that config.json describes", source.where(name),
           spec.family);
}

DType product_type(const DecoderSpec& spec, const TensorSource& source) {
  for (const TensorSpec& tensor : tensors_of(spec))
    if (tensor.shape.size() == 2 && source.info(tensor.name).dtype != DType::bf16)
      return DType::f32;
  return DType::bf16;
}

}  // namespace invar
