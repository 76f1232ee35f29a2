#include "drafters/eagle.h"

#include <algorithm>
#include <utility>

#include "engine/model_description.h"
#include "sampling/row.h"

namespace invar {

namespace {

constexpr int kLogitRows = 64;    // that there is room for; more are sampled in pieces
constexpr int kWaitingRows = 16;  // of a sequence; more are computed at once

DraftDecoder::Limits limits_of(const EagleOptions& options, const DecoderSpec& spec) {
  const DrafterRoom& room = options.room;
  const int64_t block = SequenceStore::block_bytes(states_of(spec), DraftHistory::kBlock);
  const int64_t longest = (room.context > 0 ? room.context : spec.max_positions) + options.depth;
  // A sequence's, its branches', and as many again that are kept.
  const int64_t each = longest / DraftHistory::kBlock + 2 + options.topk * options.depth;
  const int64_t useful = 2 * room.max_sequences * each;
  return {.blocks = static_cast<int>(std::clamp<int64_t>(room.kv_bytes / block, 1, useful)),
          .block_size = DraftHistory::kBlock,
          .max_rows = std::max(room.catch_up_rows, room.max_sequences),
          .max_logit_rows = kLogitRows};
}

}  // namespace

Eagle::Eagle(const std::string& directory, const EagleOptions& options, Model& target,
             ThreadPool& pool)
    : options_(options),
      pool_(pool),
      target_weights_(open_weights(target.options())),
      checkpoint_(directory, options.kind, target.spec(), *target_weights_,
                  target.workers().home().weights().shard().has_embedding),
      target_vocab_(target.spec().vocab),
      width_(static_cast<size_t>(checkpoint_.spec().hidden)),
      target_width_(static_cast<size_t>(target.spec().hidden)),
      feature_values_(checkpoint_.features().size() * target_width_),
      decoder_(checkpoint_.spec(), checkpoint_.tensors(), target, pool,
               limits_of(options, checkpoint_.spec())),
      history_(decoder_.limits().blocks),
      sampler_(pool.size(), target.host_kernels(), options.confidence) {}

// Rows wait until a draft is wanted, so that one step computes them and its first level.
void Eagle::take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                        int64_t batch_rows) {
  for (const KeptRows& k : kept) {
    Sequence& sequence = sequences_.try_emplace(k.id, history_).first->second;
    if (!follows(sequence, k)) continue;
    const int32_t have = sequence.known_rows(feature_values_);
    for (size_t i = 0; i < k.rows.size(); ++i) {
      const int32_t position = k.position + static_cast<int32_t>(i);
      if (position < have || position + 1 >= std::ssize(k.tokens)) continue;
      append_features(hidden, batch_rows, k.rows[i], sequence.waiting);
    }
    const int32_t waiting = sequence.known_rows(feature_values_) - sequence.rows.size();
    if (waiting > kWaitingRows) add_waiting(sequence, k.tokens, waiting - 1);
  }
  run_batch();
}

// After a preemption rows come again; behind a prefix-cached beginning its rows must be known.
bool Eagle::follows(Sequence& sequence, const KeptRows& kept) const {
  if (sequence.is_lost && kept.position == 0) {
    sequence.rows.clear();
    sequence.waiting.clear();
    sequence.is_lost = false;
  }
  if (sequence.is_lost) return false;
  if (kept.position <= sequence.known_rows(feature_values_)) return true;
  sequence.waiting.clear();
  sequence.is_lost = !sequence.rows.restore(kept.tokens, kept.position);
  return !sequence.is_lost;
}

void Eagle::append_features(std::span<const float> hidden, int64_t batch_rows, int32_t row,
                            std::vector<float>& features) const {
  for (const int32_t layer : checkpoint_.features()) {
    const auto of_row = hidden.subspan(
        static_cast<size_t>(layer * batch_rows + row) * target_width_, target_width_);
    features.insert(features.end(), of_row.begin(), of_row.end());
  }
}

// Adds the first `count` rows that wait. False when there are no blocks for them: then the sequence
// is lost.
bool Eagle::add_waiting(Sequence& s, std::span<const int32_t> tokens, int32_t count) {
  s.is_lost = !s.rows.reserve(count + options_.depth);
  if (s.is_lost) return s.waiting.clear(), false;
  const auto blocks = s.rows.table().blocks();
  for (int32_t left = count; left > 0;) {
    if (!has_room(1)) run_batch();
    const int32_t room = decoder_.limits().max_rows - static_cast<int32_t>(batch_.rows.size());
    const int32_t rows = std::min(left, room);
    batch_.fuses_features = true;
    batch_.sequences.push_back({{blocks.begin(), blocks.end()}});
    for (int32_t i = 0; i < rows; ++i)
      batch_.rows.push_back({.token = tokens[static_cast<size_t>(s.rows.size() + i) + 1],
                             .position = s.rows.size() + i,
                             .sequence = static_cast<int32_t>(batch_.sequences.size()) - 1,
                             .features = static_cast<int32_t>(batch_.rows.size())});
    const auto end = s.waiting.begin() + rows * static_cast<int64_t>(feature_values_);
    batch_.features.insert(batch_.features.end(), s.waiting.begin(), end);
    s.waiting.erase(s.waiting.begin(), end);
    s.rows.add(tokens, rows);
    left -= rows;
  }
  return true;
}

void Eagle::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  drafts_.clear();
  drafts_.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) begin(requests[i], trees[i]);
  run_batch();
  for (int32_t level = 1; expand(level); ++level) run_batch();
  for (Draft& draft : drafts_)
    *draft.tree =
        tree_of_best(draft.nodes, std::min(options_.num_speculative_tokens, draft.request->most));
  drafts_.clear();
}

// Adds the rows that wait; the last one's logits give the first level.
bool Eagle::begin(const DraftRequest& request, DraftTree& tree) {
  const auto found = sequences_.find(request.id);
  if (found == sequences_.end() || request.most < 1) return false;
  Sequence& s = found->second;
  const int32_t known = static_cast<int32_t>(request.tokens.size());
  if (s.is_lost || s.waiting.empty() || s.known_rows(feature_values_) != known - 1 ||
      known + options_.depth > decoder_.spec().max_positions)
    return false;
  if (!add_waiting(s, request.tokens, known - 1 - s.rows.size())) return false;
  drafts_.push_back({.request = &request,
                     .tree = &tree,
                     .sequence = &s,
                     .depth = std::min(options_.depth, request.most)});
  drafts_.back().outputs.resize(1);
  want(drafts_.size() - 1, -1);
  return true;
}

// The last row of the batch says what follows a node.
void Eagle::want(size_t draft, int32_t node) {
  DraftPoint& point = points_.emplace_back();
  point.request = drafts_[draft].request;
  point.path = path_to(drafts_[draft], node);
  point.count = options_.topk;
  point.wants_scores = options_.topk > 1;  // a chain has nothing to choose between
  batch_.logit_rows.push_back(static_cast<int32_t>(batch_.rows.size()) - 1);
  wanted_.push_back({draft, node});
}

// Adds the rows of all frontiers, which stand on this level. False when there are none.
bool Eagle::expand(int32_t level) {
  for (size_t d = 0; d < drafts_.size(); ++d) {
    Draft& draft = drafts_[d];
    if (level >= draft.depth) draft.frontier.clear();
    for (const int32_t node : std::exchange(draft.frontier, {})) add_node(draft, d, node, level);
  }
  return !batch_.rows.empty();
}

// A chain goes on in the sequence's blocks; a node of a tree has a tail of its own.
bool Eagle::add_node(Draft& draft, size_t index, int32_t node, int32_t level) {
  const auto& [token, parent, _] = draft.nodes[static_cast<size_t>(node)];
  const DraftHistory::Rows& rows = draft.sequence->rows;
  const int32_t position = rows.size() - 1 + level;
  if (!has_room(1)) return false;
  const BlockTable* table = &rows.table();
  if (options_.topk > 1) {
    const BlockTable& above = parent < 0 ? rows.table() : draft.tables[static_cast<size_t>(parent)];
    BlockTable& own = draft.tables[static_cast<size_t>(node)];
    if (!history_.fork(above, position, own, copies_) || !history_.grow(own, position + 1))
      return false;
    table = &own;
  }
  const auto blocks = table->blocks();
  batch_.sequences.push_back({{blocks.begin(), blocks.end()}});
  batch_.rows.push_back({.token = token,
                         .position = position,
                         .sequence = static_cast<int32_t>(batch_.sequences.size()) - 1,
                         .features = static_cast<int32_t>(batch_.rows.size())});
  const std::vector<float>& input = draft.outputs[static_cast<size_t>(parent + 1)];
  batch_.features.insert(batch_.features.end(), input.begin(), input.end());
  want(index, node);
  return true;
}

// A level that is larger than a step is drafted in part.
bool Eagle::has_room(int32_t rows) {
  return static_cast<int32_t>(batch_.rows.size()) + rows <= decoder_.limits().max_rows;
}

// Computes the rows that were added; those that are wanted get their children.
void Eagle::run_batch() {
  if (batch_.rows.empty()) return;
  decoder_.copy_slots(copies_);
  ForwardIo io;
  io.take_logits = [&](int64_t first, std::span<const float> logits) { sample(first, logits); };
  batch_.aux_layers.assign(wanted_.empty() ? 0 : 1, 0);
  decoder_.run(batch_, io);
  std::vector<int32_t> begins;
  for (const Draft& draft : drafts_) begins.push_back(static_cast<int32_t>(draft.nodes.size()));
  for (size_t i = 0; i < wanted_.size(); ++i)
    take_children(
        wanted_[i], points_[i],
        io.aux_hidden.subspan(static_cast<size_t>(batch_.logit_rows[i]) * width_, width_));
  for (size_t d = 0; d < drafts_.size(); ++d) choose_frontier(drafts_[d], begins[d]);
  batch_.rows.clear();
  batch_.sequences.clear();
  batch_.logit_rows.clear();
  batch_.features.clear();
  batch_.fuses_features = false;
  copies_.clear();
  wanted_.clear();
  points_.clear();
}

// Tokens that the drafter does not know are excluded.
void Eagle::sample(int64_t first, std::span<const float> logits) {
  const size_t known = static_cast<size_t>(checkpoint_.spec().vocab), rows = logits.size() / known;
  const size_t vocab = static_cast<size_t>(target_vocab_);
  const std::vector<int32_t>& ids = checkpoint_.target_ids();
  const auto points = std::span(points_).subspan(static_cast<size_t>(first), rows);
  if (ids.empty() && checkpoint_.logit_scale() == 1) return sampler_.sample(pool_, points, logits);
  if (all_logits_.size() < rows * vocab) all_logits_.resize(rows * vocab, kExcluded);
  for (size_t t = 0; t < rows; ++t)
    for (size_t i = 0; i < known; ++i)
      all_logits_[t * vocab + (ids.empty() ? i : static_cast<size_t>(ids[i]))] =
          logits[t * known + i] * checkpoint_.logit_scale();
  sampler_.sample(pool_, points, std::span<const float>(all_logits_).first(rows * vocab));
}

void Eagle::take_children(const Wanted& wanted, const DraftPoint& point,
                          std::span<const float> output) {
  Draft& draft = drafts_[wanted.draft];
  draft.outputs[static_cast<size_t>(wanted.node + 1)].assign(output.begin(), output.end());
  const float above = wanted.node < 0 ? 0 : draft.nodes[static_cast<size_t>(wanted.node)].score;
  for (size_t i = 0; i < point.tokens.size(); ++i)
    draft.nodes.push_back(
        {point.tokens[i], wanted.node, above + (point.wants_scores ? point.scores[i] : 0)});
}

// Behind the end of an answer nothing follows.
void Eagle::choose_frontier(Draft& draft, int32_t begin) {
  draft.outputs.resize(draft.nodes.size() + 1);
  while (options_.topk > 1 && draft.tables.size() < draft.nodes.size())
    draft.tables.emplace_back(history_.pool());
  for (const int32_t node : best_of(draft.nodes, begin, options_.topk))
    if (!is_stop(*draft.request->params, draft.nodes[static_cast<size_t>(node)].token))
      draft.frontier.push_back(node);
}

std::vector<int32_t> Eagle::path_to(const Draft& draft, int32_t node) const {
  std::vector<int32_t> path;
  for (; node >= 0; node = draft.nodes[static_cast<size_t>(node)].parent)
    path.push_back(draft.nodes[static_cast<size_t>(node)].token);
  std::ranges::reverse(path);
  return path;
}

}  // namespace invar
