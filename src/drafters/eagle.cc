#include "drafters/eagle.h"

#include <algorithm>

#include "base/error.h"

namespace invar {

namespace {

int64_t blocks_in(int64_t bytes, const DecoderSpec& spec) {
  const int64_t block =
      2 * int64_t{spec.kv_width()} * DraftHistory::kBlock * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, bytes / block);
}

}  // namespace

Eagle::Eagle(const std::string& directory, const EagleOptions& options, Model& target,
             ThreadPool& pool)
    : options_(options),
      pool_(pool),
      products_(target.host_kernels(), pool),
      weights_(directory, options.kind, target, products_),
      layer_(weights_, products_, pool),
      history_(weights_.spec.kv_width(), blocks_in(options.room.kv_bytes, weights_.spec)),
      sampler_(pool.size(), target.host_kernels(), options.confidence),
      final_norm_(final_norm_of(target)),
      target_eps_(target.spec().norm_eps) {}

// Known is what follows every row that was kept, so that all of them are computed at once.
void Eagle::take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                        int64_t batch_rows) {
  std::vector<NewRow> rows;
  std::vector<float> features;
  for (const KeptRows& k : kept) {
    Sequence& sequence = sequences_.try_emplace(k.id, history_).first->second;
    if (!follows(sequence, k)) continue;
    for (size_t i = 0; i < k.rows.size(); ++i) {
      const int32_t position = k.position + static_cast<int32_t>(i);
      if (position < sequence.rows.size() || position + 1 >= std::ssize(k.tokens)) continue;
      rows.push_back({&sequence, position, k.tokens});
      append_features(hidden, batch_rows, k.rows[i], features);
    }
  }
  if (rows.empty()) return;
  if (options_.kind == EagleKind::eagle)
    HostProducts::normalise(features, final_norm_, target_eps_);
  compute(rows, layer_.fuse(features));
}

// After a preemption rows come again; behind a prefix-cached beginning its rows must be known.
bool Eagle::follows(Sequence& sequence, const KeptRows& kept) const {
  if (sequence.is_lost && kept.position == 0) {
    sequence.rows.clear();
    sequence.is_lost = false;
  }
  if (sequence.is_lost) return false;
  if (kept.position <= sequence.rows.size()) return true;
  sequence.last.clear();
  sequence.is_lost = !sequence.rows.restore(kept.tokens, kept.position);
  return !sequence.is_lost;
}

void Eagle::append_features(std::span<const float> hidden, int64_t batch_rows, int32_t row,
                            std::vector<float>& features) const {
  const size_t width = static_cast<size_t>(weights_.target_width);
  for (const int32_t layer : weights_.features) {
    const auto of_row =
        hidden.subspan(static_cast<size_t>(layer * batch_rows + row) * width, width);
    features.insert(features.end(), of_row.begin(), of_row.end());
  }
}

void Eagle::compute(std::span<const NewRow> rows, std::span<const float> features) {
  std::vector<int32_t> tokens, positions;
  for (const NewRow& row : rows) {
    tokens.push_back(row.tokens[static_cast<size_t>(row.position) + 1]);
    positions.push_back(row.position);
  }
  layer_.begin(tokens, positions, features);
  std::vector<std::vector<KvRun>> runs(rows.size());
  for (size_t t = 0; t < rows.size(); ++t) {
    Sequence& s = *rows[t].sequence;
    s.is_lost = s.is_lost || !s.rows.add(rows[t].tokens, layer_.key(t), layer_.value(t));
    if (!s.is_lost) s.rows.append_runs(rows[t].position + 1, runs[t]);
  }
  const std::span<const float> out = layer_.finish(runs);
  const size_t width = static_cast<size_t>(weights_.width());
  for (size_t t = 0; t < rows.size(); ++t)
    if (t + 1 == rows.size() || rows[t + 1].sequence != rows[t].sequence)
      rows[t].sequence->last.assign(out.begin() + static_cast<int64_t>(t * width),
                                    out.begin() + static_cast<int64_t>((t + 1) * width));
}

void Eagle::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  drafts_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto found = sequences_.find(requests[i].id);
    if (found == sequences_.end() || requests[i].most < 1) continue;
    const Sequence& s = found->second;
    if (s.is_lost || s.last.empty() || s.rows.size() != std::ssize(requests[i].tokens) - 1)
      continue;
    drafts_.push_back({.request = &requests[i],
                       .tree = &trees[i],
                       .sequence = &s,
                       .depth = std::min(options_.depth, requests[i].most),
                       .nodes = {},
                       .expanded = {},
                       .frontier = {-1}});
  }
  if (drafts_.empty()) return;
  for (int32_t level = 1;; ++level) {
    score_children();
    for (Draft& draft : drafts_)
      if (level >= draft.depth) draft.frontier.clear();
    if (!expand(level)) break;
  }
  for (Draft& draft : drafts_)
    *draft.tree =
        tree_of_best(draft.nodes, std::min(options_.num_speculative_tokens, draft.request->most));
}

// The children of every frontier; the frontiers are then chosen among them.
void Eagle::score_children() {
  std::vector<DraftPoint> points;
  std::vector<float> outputs;
  for (const Draft& draft : drafts_)
    for (const int32_t node : draft.frontier) {
      DraftPoint& point = points.emplace_back();
      point.request = draft.request;
      point.path = path_to(draft, node);
      point.count = options_.topk;
      point.wants_scores = options_.topk > 1;  // a chain has nothing to choose between
      const std::vector<float>& out = output_of(draft, node);
      outputs.insert(outputs.end(), out.begin(), out.end());
    }
  sampler_.sample(pool_, points, layer_.logits(outputs));
  size_t next = 0;
  for (Draft& draft : drafts_) {
    const int32_t begin = static_cast<int32_t>(draft.nodes.size());
    for (const int32_t node : draft.frontier) {
      const DraftPoint& point = points[next++];
      const float above = node < 0 ? 0 : draft.nodes[static_cast<size_t>(node)].score;
      for (size_t i = 0; i < point.tokens.size(); ++i)
        draft.nodes.push_back(
            {point.tokens[i], node, above + (point.wants_scores ? point.scores[i] : 0)});
    }
    draft.expanded.resize(draft.nodes.size());
    choose_frontier(draft, begin);
  }
}

// Behind the end of an answer nothing follows.
void Eagle::choose_frontier(Draft& draft, int32_t begin) const {
  draft.frontier.clear();
  for (const int32_t node : best_of(draft.nodes, begin, options_.topk))
    if (!is_stop(*draft.request->params, draft.nodes[static_cast<size_t>(node)].token))
      draft.frontier.push_back(node);
}

// Runs the layer on all frontiers, which stand on this level. False when there are none.
bool Eagle::expand(int32_t level) {
  std::vector<int32_t> tokens, positions;
  std::vector<float> features;
  for (const Draft& draft : drafts_)
    for (const int32_t node : draft.frontier) {
      const auto& [token, parent, _] = draft.nodes[static_cast<size_t>(node)];
      tokens.push_back(token);
      positions.push_back(draft.sequence->rows.size() - 1 + level);
      const std::vector<float>& feature = output_of(draft, parent);
      features.insert(features.end(), feature.begin(), feature.end());
    }
  if (tokens.empty()) return false;
  layer_.begin(tokens, positions, features);
  std::vector<std::vector<KvRun>> runs(tokens.size());
  size_t row = 0;
  for (Draft& draft : drafts_)
    for (const int32_t node : draft.frontier) {
      Expanded& expanded = draft.expanded[static_cast<size_t>(node)];
      expanded.key.assign(layer_.key(row).begin(), layer_.key(row).end());
      expanded.value.assign(layer_.value(row).begin(), layer_.value(row).end());
      draft.sequence->rows.append_runs(draft.sequence->rows.size(), runs[row]);
      append_path(draft, node, runs[row++]);
    }
  const std::span<const float> out = layer_.finish(runs);
  const size_t width = static_cast<size_t>(weights_.width());
  row = 0;
  for (Draft& draft : drafts_)
    for (const int32_t node : draft.frontier) {
      const auto of_row = out.subspan(width * row++, width);
      draft.expanded[static_cast<size_t>(node)].out.assign(of_row.begin(), of_row.end());
    }
  return true;
}

// The rows from below the root to a node.
void Eagle::append_path(const Draft& draft, int32_t node, std::vector<KvRun>& runs) const {
  const size_t begin = runs.size();
  for (; node >= 0; node = draft.nodes[static_cast<size_t>(node)].parent) {
    const Expanded& e = draft.expanded[static_cast<size_t>(node)];
    runs.push_back({e.key.data(), e.value.data(), 1});
  }
  std::reverse(runs.begin() + static_cast<int64_t>(begin), runs.end());
}

std::vector<int32_t> Eagle::path_to(const Draft& draft, int32_t node) const {
  std::vector<int32_t> path;
  for (; node >= 0; node = draft.nodes[static_cast<size_t>(node)].parent)
    path.push_back(draft.nodes[static_cast<size_t>(node)].token);
  std::ranges::reverse(path);
  return path;
}

}  // namespace invar
