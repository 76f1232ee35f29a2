#include "drafters/medusa.h"

#include <algorithm>

#include "base/error.h"
#include "engine/model_description.h"
#include "model/families/make_model.h"
#include "model/families/tensors.h"

namespace invar {

namespace {

constexpr const char* kFiles[] = {"medusa_lm_head.safetensors", "model.safetensors"};
constexpr int kMostHeads = 16, kMadeHeads = 3;
// The limits of a head's step; more sequences take several.
constexpr DraftDecoder::Limits kLimits{
    .blocks = 1, .block_size = 128, .max_rows = 128, .max_logit_rows = 16};

// The names of a head's blocks and of its last matrix in one of the layouts.
struct HeadNames {
  std::vector<std::string> blocks;
  std::string logits;
};

std::optional<HeadNames> names_of(const TensorFile& file, int index) {
  const auto find = [&](auto block, auto logits) -> std::optional<HeadNames> {
    HeadNames names;
    while (file.has(block(names.blocks.size()) + ".weight"))
      names.blocks.push_back(block(names.blocks.size()));
    names.logits = logits(names.blocks.size());
    return names.blocks.empty() ? std::nullopt : std::optional(names);
  };
  for (const char* at : {"", "medusa_head."})
    if (auto names = find([&](size_t l) { return fmt::format("{}{}.{}.linear", at, index, l); },
                          [&](size_t l) { return fmt::format("{}{}.{}.weight", at, index, l); }))
      return names;
  for (const char* at : {"", "medusa_heads."})
    if (auto names =
            find([&](size_t l) { return fmt::format("{}blocks.{}.layers.{}", at, index, l); },
                 [&](size_t) { return fmt::format("{}lm_heads.{}.weight", at, index); }))
      return names;
  return std::nullopt;
}

}  // namespace

Medusa::Medusa(const std::string& directory, TreeShape shape, Model& target, ThreadPool& pool)
    : last_layer_(target.spec().layers - 1),
      width_(target.spec().hidden),
      pool_(pool),
      shape_(std::move(shape)),
      sampler_(pool.size(), target.host_kernels(), 0) {
  if (const std::optional<uint64_t> seed = made_seed(directory))
    make(*seed, target);
  else
    load(directory, target);
  if (shape_.empty()) shape_ = chain_shape(num_heads());
  if (const int32_t depth = std::ranges::max(levels_of(shape_)); depth > num_heads())
    fail_usage("expected drafts of at most {} levels, one for each Medusa head of {}, found {}",
               num_heads(), directory, depth);
}

// A head is a decoder whose layers are residual blocks.
DecoderSpec Medusa::head_spec(const Model& target, const std::vector<bool>& biases) const {
  DecoderSpec spec{.family = "llama",
                   .hidden = width_,
                   .layers = static_cast<int>(biases.size()),
                   .heads = 1,
                   .kv_heads = 1,
                   .head_dim = 8,
                   .vocab = target.spec().vocab,
                   .embedding_rows = 0,
                   .max_positions = kLimits.max_rows,
                   .norm_eps = target.spec().norm_eps,
                   .final_norm = false};
  for (const bool has_bias : biases)
    spec.layer_specs.push_back(
        {.parts = {
             ResidualBlockSpec{.has_bias = has_bias, .reads_feature = spec.layer_specs.empty()}}});
  check_spec(spec, "a Medusa head");
  return spec;
}

void Medusa::make(uint64_t seed, Model& target) {
  const DecoderSpec spec = head_spec(target, {false});
  for (int i = 0; i < kMadeHeads; ++i)
    heads_.push_back(std::make_unique<DraftDecoder>(
        spec, *dummy_weights(spec, seed + static_cast<uint64_t>(i)), target, pool_, kLimits));
}

void Medusa::load(const std::string& directory, Model& target) {
  const TensorFile file(directory, kFiles);
  const auto target_weights = open_weights(target.options());
  while (num_heads() < kMostHeads && load_head(file, *target_weights, target)) {
  }
  if (heads_.empty())
    fail("{}: expected Medusa heads (0.0.linear.weight or blocks.0.layers.0.weight), found none",
         file.path());
}

// False when there is no head of the next number.
bool Medusa::load_head(const TensorFile& file, const TensorSource& target_weights, Model& target) {
  const std::optional<HeadNames> names = names_of(file, num_heads());
  if (!names) return false;
  RenamedTensors tensors;
  std::vector<bool> biases;
  tensors.add("model.layers.0.feature_norm.weight", target_weights, "model.norm.weight");
  for (const std::string& block : names->blocks) {
    const std::string layer = fmt::format("model.layers.{}.", biases.size());
    biases.push_back(file.has(block + ".bias"));
    tensors.add(layer + "block.weight", file, block + ".weight");
    if (biases.back()) tensors.add(layer + "block.bias", file, block + ".bias");
  }
  tensors.add("lm_head.weight", file, names->logits);
  const DecoderSpec spec = head_spec(target, biases);
  check_tensors(spec, tensors);
  heads_.push_back(std::make_unique<DraftDecoder>(spec, tensors, target, pool_, kLimits));
  return true;
}

void Medusa::take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden, int64_t) {
  for (const KeptRows& rows : kept) {
    if (rows.rows.empty()) continue;
    Last& last = last_[rows.id];
    last.position = rows.position + static_cast<int32_t>(rows.rows.size()) - 1;
    const auto row = hidden.subspan(int64_t{rows.rows.back()} * width_, width_);
    last.hidden.assign(row.begin(), row.end());
  }
}

void Medusa::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  std::vector<size_t> drafted;
  std::vector<float> x;  // a row each
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto last = last_.find(requests[i].id);
    if (requests[i].most < 1 || last == last_.end() ||
        last->second.position != std::ssize(requests[i].tokens) - 2)
      continue;
    drafted.push_back(i);
    x.insert(x.end(), last->second.hidden.begin(), last->second.hidden.end());
  }
  if (drafted.empty()) return;
  const std::vector<int32_t> levels = levels_of(shape_);
  const int32_t depth = std::ranges::max(levels);
  // By level: each sequence's tokens, the likeliest first.
  std::vector<std::vector<DraftPoint>> points(static_cast<size_t>(depth));
  for (int32_t level = 0; level < depth; ++level) {
    int32_t count = 0;
    for (size_t n = 0; n < shape_.size(); ++n)
      if (levels[n] == level + 1) count = std::max(count, shape_[n].rank + 1);
    for (size_t d = 0; d < drafted.size(); ++d) {
      DraftPoint& point = points[level].emplace_back();
      point.request = &requests[drafted[d]];
      point.count = count;
      for (int32_t above = 0; above < level; ++above) {
        const auto& tokens = points[above][d].tokens;
        point.path.push_back(tokens.empty() ? 0 : tokens[0]);
      }
    }
    sample_level(*heads_[level], points[level], x);
  }
  for (size_t d = 0; d < drafted.size(); ++d)
    trees[drafted[d]] = tree_of(points, d, requests[drafted[d]].most);
}

// The nodes of the shape that have tokens; points[level][draft] are those of a level.
DraftTree Medusa::tree_of(std::span<const std::vector<DraftPoint>> points, size_t draft,
                          int32_t most) const {
  const std::vector<int32_t> levels = levels_of(shape_);
  DraftTree tree;
  std::vector<int32_t> index(shape_.size(), -1);  // in the tree
  for (size_t n = 0; n < std::min<size_t>(shape_.size(), most); ++n) {
    const auto [parent, rank] = shape_[n];
    const auto& tokens = points[levels[n] - 1][draft].tokens;
    if (rank >= std::ssize(tokens) || (parent >= 0 && index[parent] < 0)) continue;
    index[n] = static_cast<int32_t>(tree.size());
    tree.push_back({tokens[rank], parent < 0 ? -1 : index[parent]});
  }
  return tree;
}

// A row of x for each point.
void Medusa::sample_level(DraftDecoder& head, std::span<DraftPoint> points,
                          std::span<const float> x) {
  while (!points.empty()) {
    const auto piece = points.first(std::min<size_t>(points.size(), kLimits.max_rows));
    const auto features = x.first(piece.size() * static_cast<size_t>(width_));
    Batch batch{.sequences = {{.blocks = {0}}},
                .features = {features.begin(), features.end()},
                .fuses_features = true};
    for (int32_t t = 0; t < std::ssize(piece); ++t) {
      batch.rows.push_back({.position = t, .features = t});
      batch.logit_rows.push_back(t);
    }
    ForwardIo io;
    io.take_logits = [&](int64_t first, std::span<const float> logits) {
      const size_t rows = logits.size() / static_cast<size_t>(head.spec().vocab);
      sampler_.sample(pool_, piece.subspan(static_cast<size_t>(first), rows), logits);
    };
    head.run(batch, io);
    points = points.subspan(piece.size());
    x = x.subspan(features.size());
  }
}

}  // namespace invar
