#include "model/families/tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "model/families/family.h"

namespace invar {

namespace {

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

// Tensors that a module of multi-token prediction shares with the model, by the names of its own.
constexpr std::string_view kModuleEmbedding = "embed_tokens.weight";
constexpr std::string_view kModuleHead = "shared_head.head.weight";

std::string module_tensor(const DecoderSpec& spec, std::string_view name) {
  return fmt::format("model.layers.{}.{}", spec.layers, name);
}

bool is_ignored(const DecoderSpec& spec, std::string_view name) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;  // computed; stored by old versions
  if (spec.mtp_layers == 0) return false;
  return name == module_tensor(spec, kModuleEmbedding) || name == module_tensor(spec, kModuleHead);
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

bool has_module(const DecoderSpec& spec, const TensorSource& source) {
  const std::string prefix = module_tensor(spec, "");
  return std::ranges::any_of(source.names(),
                             [&](const std::string& name) { return name.starts_with(prefix); });
}

DecoderSpec spec_of_stored(DecoderSpec spec, const TensorSource& source) {
  const Family* family = find_family(&Family::name, spec.family);
  if (!has_module(spec, source))
    spec.mtp_layers = 0;
  else if (family && family->has_unannounced_module)
    spec.mtp_layers = 1;
  return spec;
}

void check_module(const DecoderSpec& spec, const TensorSource& source) {
  if (spec.mtp_layers == 0) return;
  const std::string embedding = tensor_name(TensorRole::embedding);
  const std::string head = spec.tied_head ? embedding : tensor_name(TensorRole::head);
  for (const auto& [own, of_model] :
       {std::pair(kModuleEmbedding, embedding), {kModuleHead, head}}) {
    const std::string name = module_tensor(spec, own);
    if (!source.has(name)) continue;
    check_tensor({TensorRole::head, spec.layers, name, {spec.vocab, spec.hidden}}, spec, source);
    const int64_t index = first_difference(source, name, of_model);
    if (index >= 0)
      fail(
          "{}: expected the module of multi-token prediction to have the model's {}, found another "
          "in row {}",
          source.where(name), json::quoted(of_model), index / spec.hidden);
  }
}

DType product_type(const DecoderSpec& spec, const TensorSource& source) {
  for (const TensorSpec& tensor : tensors_of(spec))
    if (tensor.shape.size() == 2 &&
        storage_of(source.info(tensor.name).dtype).element == DType::f32)
      return DType::f32;
  return DType::bf16;
}

DType quantised_type(const DecoderSpec& spec, const TensorSource& source) {
  for (const TensorSpec& tensor : tensors_of(spec))
    if (const DType type = source.info(tensor.name).dtype;
        tensor.takes_quantised && is_quantised(type))
      return type;
  return DType::bf16;
}

bool has_blocks(const DecoderSpec& spec, const TensorSource& source) {
  for (const TensorSpec& tensor : tensors_of(spec))
    if (storage_of(source.info(tensor.name).dtype).has_blocks()) return true;
  return false;
}

}  // namespace invar
