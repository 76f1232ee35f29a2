#include "model/families/stored_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/function_ref.h"
#include "model/families/experts.h"
#include "model/families/gguf_places.h"

namespace invar {

namespace {

// Where a tensor of a module stands that is named apart from the layers.
StoredAt in_module(const DecoderSpec& spec, const TensorSpec& tensor, StoredAt at) {
  const Family* family = find_family(&Family::name, spec.family);
  if (!family || family->module_prefix.empty() || tensor.layer != spec.layers) return at;
  const std::string layer = fmt::format("model.layers.{}.", spec.layers);
  const std::string prefix(family->module_prefix), block = prefix + "layers.0.";
  at.tensor = renamed(at.tensor, {{layer + "enorm.", prefix + "pre_fc_norm_embedding."},
                                  {layer + "hnorm.", prefix + "pre_fc_norm_hidden."},
                                  {layer + "eh_proj.", prefix + "fc."},
                                  {layer + "shared_head.norm.", prefix + "norm."},
                                  {layer, block}});
  return at;
}

StoredAt place_of(const DecoderSpec& spec, const TensorSpec& tensor,
                  const TensorSource* stored = nullptr) {
  if (stored && stored->has_gguf_names()) return gguf_place(spec, tensor, *stored);
  const Family* family = find_family(&Family::name, spec.family);  // of a drafter there is none
  return in_module(spec, tensor,
                   family && family->stored ? family->stored(spec, tensor) : StoredAt{tensor.name});
}

// Other places where a tensor of a layer with experts may stand: under the decoder's own name, or
// all experts' in one tensor.
std::vector<StoredAt> other_places(const DecoderSpec& spec, const TensorSpec& tensor) {
  std::vector<StoredAt> places;
  const Family* family = find_family(&Family::name, spec.family);
  if (family && family->stored_otherwise) places.push_back(family->stored_otherwise(spec, tensor));
  if (tensor.layer < 0 || !spec.layer(tensor.layer).experts()) return places;
  places.push_back({tensor.name});
  if (tensor.role == TensorRole::router)
    places.push_back({renamed(tensor.name, {{"mlp.gate", "block_sparse_moe.router"}})});
  if (tensor.expert < 0 || tensor.shape.size() != 2) return places;
  for (const char* module : {"mlp", "block_sparse_moe"}) {
    const std::string at = fmt::format("model.layers.{}.{}.experts.", tensor.layer, module);
    places.push_back(stacked_at(spec, tensor, at + "gate_up_proj", at + "down_proj"));
  }
  return places;
}

// The part of a model that reads text stands under another name where it reads images, too.
constexpr std::string_view kTowerPrefixes[] = {"language_model.model.", "model.language_model."};
constexpr std::string_view kNoText[] = {
    "vision_tower.",       "multi_modal_projector.", "visual.",
    "vision_model.",       "mm_projector.",          "model.visual.",
    "model.vision_tower.", "model.vision_",          "model.multi_modal_projector.",
    "model.audio_tower.",  "model.embed_audio.",     "model.embed_vision.",
};

bool is_no_text(std::string_view name) {
  return std::ranges::any_of(kNoText,
                             [&](std::string_view begin) { return name.starts_with(begin); });
}

bool is_unread(const Family* family, const DecoderSpec& spec, const std::string& name) {
  if (!family) return false;
  if (family->is_unread && family->is_unread(spec, without_tower(name))) return true;
  return !family->unread.empty() && name.starts_with(family->unread);
}

}  // namespace

StoredAt found_place(const DecoderSpec& spec, const TensorSpec& tensor,
                     const TensorSource& stored) {
  StoredAt at = place_of(spec, tensor, &stored);
  if (stored.has_gguf_names()) return at;
  if (spec.is_text_tower) at.tensor = in_tower(stored, at.tensor);
  if (stored.has(at.tensor)) return at;
  std::vector<StoredAt> there = other_places(spec, tensor);
  for (StoredAt& other : there) other = in_module(spec, tensor, std::move(other));
  if (spec.is_text_tower)
    for (StoredAt& other : there) other.tensor = in_tower(stored, other.tensor);
  std::erase_if(there, [&](const StoredAt& other) { return !stored.has(other.tensor); });
  // Inputs may be rows or columns: the shape says which.
  const auto fits = [&](const StoredAt& other) {
    return other.shape.empty() || stored.info(other.tensor).shape == other.shape;
  };
  const auto found = std::ranges::find_if(there, fits);
  if (found != there.end()) return std::move(*found);
  return there.empty() ? at : std::move(there.front());
}

bool is_left_out(const DecoderSpec& spec, const TensorSource& stored, const std::string& name) {
  const Family* family = find_family(&Family::name, spec.family);
  // A module that predicts further is not read where the specification has none.
  const bool has_states = family && family->has_states && spec.mtp_layers == 0;
  return (spec.is_text_tower && is_no_text(name)) || (has_states && name.starts_with("mtp.")) ||
         is_unread(family, spec, name) || (stored.has_gguf_names() && is_gguf_constant(name));
}

std::string in_tower(const TensorSource& stored, const std::string& name) {
  if (stored.has(name)) return name;
  for (const std::string_view tower : kTowerPrefixes)
    if (const std::string other = renamed(name, {{"model.", tower}}); stored.has(other))
      return other;
  return name == "lm_head.weight" ? "language_model.lm_head.weight" : name;
}

std::string without_tower(const std::string& name) {
  for (const std::string_view tower : kTowerPrefixes)
    if (name.starts_with(tower)) return "model." + name.substr(tower.size());
  return name;
}

bool stores_otherwise(const DecoderSpec& spec) {
  const Family* family = find_family(&Family::name, spec.family);
  return spec.is_text_tower || (family && family->stored);
}

bool stores_offsets(const DecoderSpec& spec) {
  const auto is_offset = [&](const TensorSpec& tensor) {
    const StoredAt at = place_of(spec, tensor);
    return at.tensor == tensor.name && !at.row && at.shape.empty() &&
           at.is_plus_one == (tensor.shape.size() == 1);
  };
  return stores_otherwise(spec) && !spec.is_text_tower &&
         std::ranges::all_of(tensors_of(spec), is_offset);
}

bool stores_decoders_numbers(const DecoderSpec& spec) {
  const auto is_the_decoders = [&](const TensorSpec& tensor) {
    const StoredAt at = place_of(spec, tensor);
    return at.scale == 1 && !at.is_exponential && (!at.is_plus_one || tensor.shape.size() == 1);
  };
  return !stores_otherwise(spec) ||
         (!spec.is_text_tower && std::ranges::all_of(tensors_of(spec), is_the_decoders));
}

bool is_stored_as_offset(const DecoderSpec& spec, const TensorSpec& tensor) {
  return place_of(spec, tensor).is_plus_one;
}

namespace {

std::vector<StoredTensor> grouped_tensors(
    const DecoderSpec& spec,
    FunctionRef<StoredAt(const DecoderSpec&, const TensorSpec&)> place_in) {
  std::vector<StoredTensor> tensors;
  std::map<std::string, size_t> known;
  for (const TensorSpec& tensor : tensors_of(spec)) {
    StoredAt at = place_in(spec, tensor);
    int64_t rows = tensor.shape[0];
    if (at.row) {
      rows = 0;
      for (int64_t row = 0; row < tensor.shape[0]; ++row) rows = std::max(rows, at.row(row) + 1);
    }
    const auto [place, is_new] = known.try_emplace(at.tensor, tensors.size());
    if (is_new) tensors.push_back({at.tensor, at.shape.empty() ? tensor.shape : at.shape, {}});
    StoredTensor& stored = tensors[place->second];
    if (at.shape.empty()) stored.shape[0] = is_new ? rows : std::max(stored.shape[0], rows);
    stored.parts.push_back({tensor, std::move(at)});
  }
  return tensors;
}

}  // namespace

std::vector<StoredTensor> stored_tensors(const DecoderSpec& spec) {
  return grouped_tensors(
      spec, [](const DecoderSpec& of, const TensorSpec& tensor) { return place_of(of, tensor); });
}

std::vector<StoredTensor> gguf_tensors(const DecoderSpec& spec) {
  return grouped_tensors(
      spec, [](const DecoderSpec& of, const TensorSpec& tensor) { return gguf_place(of, tensor); });
}

ColumnsOf gguf_columns(const DecoderSpec& spec) {
  ColumnsOf columns;
  for (const TensorSpec& tensor : tensors_of(spec))
    if (const StoredAt at = gguf_place(spec, tensor); at.pieces.size > 0)
      columns[tensor.name] = at.pieces.back();
  return columns;
}

}  // namespace invar
