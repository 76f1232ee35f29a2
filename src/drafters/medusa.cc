#include "drafters/medusa.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "drafters/target_parts.h"

namespace invar {

namespace {

constexpr const char* kFiles[] = {"medusa_lm_head.safetensors", "model.safetensors"};
constexpr int kMostHeads = 16;
// Of made weights: a residual block for each of three heads.
constexpr const char* kMadeBlocks[] = {"0.0.linear.weight", "1.0.linear.weight",
                                       "2.0.linear.weight"};

}  // namespace

Medusa::Medusa(const std::string& directory, TreeShape shape, Model& target, ThreadPool& pool)
    : last_layer_(target.spec().layers - 1),
      width_(target.spec().hidden),
      vocab_(target.spec().vocab),
      eps_(target.spec().norm_eps),
      pool_(pool),
      shape_(std::move(shape)),
      products_(target.host_kernels(), pool),
      sampler_(pool.size(), target.host_kernels(), 0),
      final_norm_(final_norm_of(target)) {
  const TensorFile file(directory, kFiles, kMadeBlocks);
  load(file);
  if (heads_.empty())
    fail("{}: expected Medusa heads (0.0.linear.weight or blocks.0.layers.0.weight), found none",
         file.path());
  if (shape_.empty()) shape_ = chain_shape(num_heads());
  if (const int32_t depth = std::ranges::max(levels_of(shape_)); depth > num_heads())
    fail_usage("expected drafts of at most {} levels, one for each Medusa head of {}, found {}",
               num_heads(), file.path(), depth);
}

void Medusa::load(const TensorFile& file) {
  while (num_heads() < kMostHeads && load_head(file, num_heads())) {
  }
}

// False when there is no head of that number.
bool Medusa::load_head(const TensorFile& file, int index) {
  Head head;
  std::string logits;
  for (const char* prefix : {"", "medusa_head."}) {
    const auto block = [&](size_t l) { return fmt::format("{}{}.{}.linear", prefix, index, l); };
    while (file.has(block(head.blocks.size()) + ".weight"))
      head.blocks.push_back(load_block(file, block(head.blocks.size())));
    if (logits.empty() && !head.blocks.empty())
      logits = fmt::format("{}{}.{}.weight", prefix, index, head.blocks.size());
  }
  for (const char* prefix : {"", "medusa_heads."}) {
    const auto block = [&](size_t l) {
      return fmt::format("{}blocks.{}.layers.{}", prefix, index, l);
    };
    if (!logits.empty()) break;
    while (file.has(block(head.blocks.size()) + ".weight"))
      head.blocks.push_back(load_block(file, block(head.blocks.size())));
    if (!head.blocks.empty()) logits = fmt::format("{}lm_heads.{}.weight", prefix, index);
  }
  if (head.blocks.empty()) return false;
  head.logits = products_.pack(file.matrix(logits, vocab_, width_), vocab_, width_);
  heads_.push_back(std::move(head));
  return true;
}

Medusa::Block Medusa::load_block(const TensorFile& file, const std::string& name) {
  Block block;
  block.weight = products_.pack(file.matrix(name + ".weight", width_, width_), width_, width_);
  if (file.has(name + ".bias")) block.bias = file.vector(name + ".bias", width_);
  return block;
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
  HostProducts::normalise(x, final_norm_, eps_);
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
    sampler_.sample(pool_, points[level], logits_of(heads_[level], x));
  }
  for (size_t d = 0; d < drafted.size(); ++d) {
    DraftTree& tree = trees[drafted[d]];
    std::vector<int32_t> index(shape_.size(), -1);  // in the tree
    const auto most = std::min<size_t>(shape_.size(), requests[drafted[d]].most);
    for (size_t n = 0; n < most; ++n) {
      const auto [parent, rank] = shape_[n];
      const auto& tokens = points[levels[n] - 1][d].tokens;
      if (rank >= std::ssize(tokens) || (parent >= 0 && index[parent] < 0)) continue;
      index[n] = static_cast<int32_t>(tree.size());
      tree.push_back({tokens[rank], parent < 0 ? -1 : index[parent]});
    }
  }
}

std::vector<float> Medusa::logits_of(const Head& head, std::span<const float> x) {
  std::vector<float> y(x.begin(), x.end()), z;
  for (const Block& block : head.blocks) {
    products_.multiply(y, block.weight, block.bias.empty() ? nullptr : block.bias.data(), z);
    for (size_t i = 0; i < y.size(); ++i) y[i] += z[i] / (1 + std::exp(-z[i]));
  }
  products_.multiply(y, head.logits, nullptr, z);
  return z;
}

}  // namespace invar
