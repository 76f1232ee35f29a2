#include "drafters/model_drafter.h"

#include <algorithm>
#include <numeric>

#include "kv/cell_placement.h"

namespace invar {

namespace {

constexpr int kBlockSize = 64;
constexpr int kLogitRows = 64;  // that there is room for; more are sampled in pieces

int32_t chunk_begin(int64_t position) {
  return static_cast<int32_t>(position / kBoundary * kBoundary);
}

int32_t inner_nodes(const std::vector<int32_t>& ranks_below) {
  return static_cast<int32_t>(std::count_if(ranks_below.begin() + 1, ranks_below.end(),
                                            [](int32_t ranks) { return ranks > 0; }));
}

bool is_chain(const TreeShape& shape) {
  return shape == chain_shape(static_cast<int32_t>(shape.size()));
}

int32_t trunk_of(const TreeShape& shape) {
  int32_t size = 0;
  while (size < std::ssize(shape) && shape[size].parent == size - 1) ++size;
  return size;
}

int32_t paths_beside_trunk(const DraftTree& tree) {
  std::vector<char> has_child(tree.size(), false);
  for (const DraftNode& node : tree)
    if (node.parent >= 0) has_child[static_cast<size_t>(node.parent)] = true;
  return static_cast<int32_t>(std::count(has_child.begin() + trunk_size(tree), has_child.end(), 0));
}

int layers_of(const Model& model, int exit_layer) {
  return exit_layer > 0 ? exit_layer : model.spec().layers;
}

// A part of the target shares its weights but not its states.
void expect_own_states(const Model& model, const ModelDrafterOptions& options) {
  const bool is_part = options.exit_layer > 0 || !options.skipped_layers.empty();
  if (is_part && has_states(model.spec()))
    fail_usage(
        "expected layers without states where a part of the target drafts, found the {} model",
        model.spec().family);
}

int64_t chunk_bytes(const Model& model) {
  return SequenceStore::chunk_bytes(states_of(model.spec()), model.arithmetic().cache);
}

int64_t cell_bytes(const Model& model) {
  return chunk_bytes(model) +
         SequenceStore::state_bytes(states_of(model.spec()), model.arithmetic().cache);
}

// Sequences that have a state at the same time: half of the memory is theirs.
int cells_for(const Model& model, const ModelDrafterOptions& options) {
  if (!has_states(model.spec())) return 0;
  const DrafterRoom& room = options.room;
  return static_cast<int>(
      std::clamp<int64_t>(room.kv_bytes / 2 / cell_bytes(model), 1, room.max_sequences));
}

// Chunks for the paths of all trees of a step: a quarter of the memory. Drafts move no state.
int path_cells_for(const Model& model, const ModelDrafterOptions& options) {
  const int64_t paths = inner_nodes(ranks_below(options.shape));
  if (!has_states(model.spec()) || is_chain(options.shape) || paths == 0) return 0;
  const DrafterRoom& room = options.room;
  return static_cast<int>(
      std::clamp<int64_t>(room.kv_bytes / 4 / chunk_bytes(model), 1, room.max_sequences * paths));
}

// Blocks of keys and values in what cells leave of the memory; one sequence always has its own.
int blocks_for(const Model& model, const ModelDrafterOptions& options, int32_t context,
               const RunnerLimits& limits) {
  const DecoderSpec& spec = model.spec();
  const int64_t bytes =
      SequenceStore::block_bytes(states_of(spec, {}, {0, layers_of(model, options.exit_layer)}),
                                 kBlockSize, model.arithmetic().cache);
  const int64_t longest = (context + kBlockSize - 1) / kBlockSize + 1;
  const int64_t useful = options.room.max_sequences * longest + kMaxDraftNodes;
  int64_t left = options.room.kv_bytes;
  if (has_states(spec))
    left -= Runner::cell_bytes(states_of(spec), limits, model.arithmetic().cache);
  return static_cast<int>(std::max(longest, std::min(useful, left / std::max<int64_t>(bytes, 1))));
}

RunnerLimits limits_of(const Model& model, const ModelDrafterOptions& options, int32_t context) {
  expect_own_states(model, options);
  const DrafterRoom& room = options.room;
  const int32_t tree_rows = 1 + inner_nodes(ranks_below(options.shape));
  RunnerLimits limits{.blocks = 0,
                      .block_size = kBlockSize,
                      .max_rows = std::max(room.catch_up_rows, room.max_sequences * tree_rows),
                      .max_logit_rows = kLogitRows,
                      .cells = cells_for(model, options),
                      .draft_cells = path_cells_for(model, options),
                      .drafts_move_states = false,
                      .exit_layer = options.exit_layer};
  limits.blocks = blocks_for(model, options, context, limits);
  return limits;
}

int32_t context_of(const Model& model, const DrafterRoom& room) {
  const int32_t most = model.spec().max_positions;
  return room.context > 0 ? std::min(room.context, most) : most;
}

}  // namespace

ModelDrafter::ModelDrafter(std::shared_ptr<Model> model, const ModelDrafterOptions& options,
                           ThreadPool* threads)
    : options_(options),
      levels_(levels_of(options.shape)),
      ranks_below_(ranks_below(options.shape)),
      depth_(levels_.empty() ? 0 : *std::ranges::max_element(levels_)),
      trunk_(trunk_of(options.shape)),
      is_chain_(is_chain(options.shape)),
      model_(std::move(model)),
      pool_(threads ? *threads : model_->pool()),
      context_(context_of(*model_, options.room)),
      has_states_(has_states(model_->spec())),
      path_cells_(path_cells_for(*model_, options)),
      blocks_(limits_of(*model_, options, context_).blocks, kBlockSize,
              cells_for(*model_, options)),
      executor_(*model_, limits_of(*model_, options, context_), threads),
      sampler_(pool_.size(), model_->host_kernels(), options.confidence) {
  batch_.skipped_layers = options.skipped_layers;
}

void ModelDrafter::forget(int64_t id) {
  computed_.erase(id);
  blocks_.forget(id);
}

void ModelDrafter::recover() {
  executor_.recover();
  computed_.clear();
  blocks_.forget_all();
  clear_batch();
}

void ModelDrafter::clear_batch() {
  batch_.rows.clear();
  batch_.sequences.clear();
  batch_.logit_rows.clear();
  wanted_.clear();
  points_.clear();
}

void ModelDrafter::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  blocks_.begin_round();
  drafts_.clear();
  for (size_t i = 0; i < requests.size() && std::ssize(drafts_) < options_.room.max_sequences; ++i)
    if (Draft draft{.request = &requests[i], .tree = &trees[i]}; begin(draft))
      drafts_.push_back(std::move(draft));
  run_known_rows();
  for (int32_t level = 1; level < depth_ && run_level(level); ++level) {
  }
  for (const Draft& draft : drafts_) write_tree(draft);
}

// Finds how much of the sequence is known and computed. False when it cannot be drafted for.
bool ModelDrafter::begin(Draft& draft) {
  const auto tokens = draft.request->tokens;
  if (draft.request->most < 1 || draft.known() + depth_ > context_) return false;
  draft.computed = &computed_[draft.request->id];
  std::vector<int32_t>& computed = *draft.computed;
  if (blocks_.capacity(draft.request->id) == 0) computed.clear();  // others took its blocks
  const auto [differs, _] = std::ranges::mismatch(computed, tokens);
  // The last one once more: its logits are wanted.
  draft.done = std::min(static_cast<int32_t>(differs - computed.begin()), draft.known() - 1);
  // A state that has moved does not go back.
  if (has_states_ && draft.done < chunk_begin(std::ssize(computed))) draft.done = 0;
  computed.resize(draft.done);
  draft.nodes = std::min(draft.request->most, most_nodes());
  draft.token_of.assign(options_.shape.size(), -1);
  return blocks_.grow(draft.request->id, draft.known() + depth_);
}

// Those that lack least come first: a long prompt does not keep answers waiting for their drafts. A
// sequence whose rows do not all fit goes on in the next round.
void ModelDrafter::run_known_rows() {
  std::ranges::stable_sort(drafts_, {},
                           [](const Draft& draft) { return draft.known() - draft.done; });
  int32_t left = options_.room.catch_up_rows;
  if (has_states_) end_chunks(left);
  for (size_t i = 0; i < drafts_.size() && left > 0; ++i) {
    const int32_t count = std::min(left, drafts_[i].known() - drafts_[i].done);
    add_known_rows(i, count);
    left -= count;
  }
  run_batch();
}

// Rows up to a boundary, of sequences that stand before one and go on behind it: the others' then
// begin at one, and there are scratch chunks for all of these.
void ModelDrafter::end_chunks(int32_t& left) {
  for (size_t i = 0; i < drafts_.size() && left > 0; ++i) {
    const int32_t begin = drafts_[i].done, end = chunk_begin(begin + kBoundary - 1);
    if (end == begin || end >= drafts_[i].known()) continue;
    const int32_t count = std::min(left, end - begin);
    add_known_rows(i, count);
    left -= count;
  }
  run_batch();
}

// Drafts the nodes below those of a level. False when there are none.
bool ModelDrafter::run_level(int32_t level) {
  free_path_cells_ = path_cells_;
  for (size_t i = 0; i < drafts_.size(); ++i) {
    if (is_chain_ || begins_a_chunk(drafts_[i]))
      add_trunk_row(i, level);
    else
      add_tree_rows(i, level);
  }
  return run_batch();
}

// Whether the last known token has moved the state, so that it cannot be computed once more.
bool ModelDrafter::begins_a_chunk(const Draft& draft) const {
  return has_states_ && draft.known() % kBoundary == 0;
}

int32_t ModelDrafter::add_sequence(const Draft& draft) {
  const auto blocks = blocks_.blocks(draft.request->id);
  batch_.sequences.push_back(
      {.blocks = {blocks.begin(), blocks.end()}, .cell = blocks_.cell(draft.request->id)});
  return static_cast<int32_t>(batch_.sequences.size()) - 1;
}

void ModelDrafter::add_known_rows(size_t index, int32_t count) {
  Draft& draft = drafts_[index];
  const int32_t sequence = add_sequence(draft);
  for (; count > 0; --count, ++draft.done) {
    const int32_t token = draft.request->tokens[draft.done];
    batch_.rows.push_back({.token = token, .position = draft.done, .sequence = sequence});
    draft.computed->push_back(token);
  }
  if (draft.done == draft.known()) want_children(index, -1, std::ssize(batch_.rows) - 1);
}

// The trunk's node of this level alone, where those above it are there.
void ModelDrafter::add_trunk_row(size_t index, int32_t level) {
  Draft& draft = drafts_[index];
  const int32_t node = level - 1;
  if (node >= trunk_ || !is_inner(draft, node)) return;
  const int32_t token = draft.token_of[node];
  batch_.rows.push_back(
      {.token = token, .position = draft.known() + node, .sequence = add_sequence(draft)});
  draft.computed->push_back(token);
  want_children(index, node, std::ssize(batch_.rows) - 1);
}

// The nodes down to this level that have children, once more, below the last known token.
void ModelDrafter::add_tree_rows(size_t index, int32_t level) {
  Draft& draft = drafts_[index];
  DraftTree inner;
  std::vector<int32_t> inner_of(draft.nodes, -1), node_of;
  bool reaches_level = false;
  for (int32_t node = 0; node < draft.nodes; ++node) {
    const int32_t parent = options_.shape[node].parent;
    if (!is_inner(draft, node) || levels_[node] > level || (parent >= 0 && inner_of[parent] < 0))
      continue;
    inner_of[node] = static_cast<int32_t>(inner.size());
    node_of.push_back(node);
    inner.push_back({draft.token_of[node], parent < 0 ? -1 : inner_of[parent]});
    reaches_level |= levels_[node] == level;
  }
  if (!reaches_level) return;
  const int32_t paths = has_states_ ? paths_beside_trunk(inner) : 0;
  if (paths > free_path_cells_) return add_trunk_row(index, level);
  free_path_cells_ -= paths;
  const int64_t root = std::ssize(batch_.rows);
  batch_.rows.push_back({.token = draft.request->tokens.back(),
                         .position = draft.known() - 1,
                         .sequence = add_sequence(draft)});
  append_rows(inner, batch_.rows);
  draft.computed->resize(draft.known());
  for (int32_t i = 0; i < trunk_size(inner); ++i) draft.computed->push_back(inner[i].token);
  for (size_t i = 0; i < node_of.size(); ++i)
    if (levels_[node_of[i]] == level)
      want_children(index, node_of[i], root + 1 + static_cast<int64_t>(i));
}

bool ModelDrafter::is_inner(const Draft& draft, int32_t node) const {
  // A draft in a chunk's last slot would move the state.
  if (has_states_ && (draft.known() + levels_[node]) % kBoundary == 0) return false;
  return node < draft.nodes && draft.token_of[node] >= 0 && ranks_below_[node + 1] > 0 &&
         !is_stop(*draft.request->params, draft.token_of[node]);
}

void ModelDrafter::want_children(size_t index, int32_t node, int64_t row) {
  const Draft& draft = drafts_[index];
  DraftPoint point{.request = draft.request, .count = ranks_below_[node + 1]};
  for (int32_t at = node; at >= 0; at = options_.shape[at].parent)
    point.path.push_back(draft.token_of[at]);
  std::ranges::reverse(point.path);
  batch_.logit_rows.push_back(static_cast<int32_t>(row));
  wanted_.push_back({index, node});
  points_.push_back(std::move(point));
}

// Computes the rows that were added and samples what they want. False when there were none, or no
// blocks for the tails of a tree.
bool ModelDrafter::run_batch() {
  const bool goes_on =
      !batch_.rows.empty() &&
      blocks_.take_scratch(scratch_blocks_needed(batch_.rows, kBlockSize), batch_.scratch_blocks);
  if (goes_on) {
    ForwardIo io;
    io.take_logits = [&](int64_t first, std::span<const float> logits) {
      const size_t count = logits.size() / static_cast<size_t>(model_->spec().vocab);
      sampler_.sample(pool_, std::span(points_).subspan(first, count), logits);
    };
    executor_.run(batch_, io);
  }
  if (!goes_on && !batch_.rows.empty())  // what was added was not computed
    for (const Draft& draft : drafts_)
      draft.computed->resize(std::min(draft.computed->size(), static_cast<size_t>(draft.known())));
  for (size_t i = 0; goes_on && i < wanted_.size(); ++i) {
    Draft& draft = drafts_[wanted_[i].draft];
    for (int32_t node = 0; node < draft.nodes; ++node) {
      const auto [parent, rank] = options_.shape[node];
      if (parent == wanted_[i].node && rank < std::ssize(points_[i].tokens))
        draft.token_of[node] = points_[i].tokens[rank];
    }
  }
  clear_batch();
  return goes_on;
}

void ModelDrafter::write_tree(const Draft& draft) const {
  std::vector<int32_t> index(draft.nodes, -1);  // in the tree
  for (int32_t node = 0; node < draft.nodes; ++node) {
    if (draft.token_of[node] < 0) continue;
    const int32_t parent = options_.shape[node].parent;
    index[node] = static_cast<int32_t>(draft.tree->size());
    draft.tree->push_back({draft.token_of[node], parent < 0 ? -1 : index[parent]});
  }
}

}  // namespace invar
