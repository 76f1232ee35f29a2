#include "drafters/early_exit.h"

#include <algorithm>

namespace invar {

namespace {

constexpr int kLogitRows = 64;  // that there is room for; more are sampled in pieces

}  // namespace

EarlyExit::EarlyExit(Model& target, int exit_layer, int32_t length, double confidence,
                     int max_sequences, ThreadPool& threads)
    : target_(target),
      exit_layer_(exit_layer),
      max_sequences_(max_sequences),
      length_(length),
      width_(static_cast<size_t>(target.spec().hidden)),
      pool_(threads),
      sampler_(threads.size(), target.host_kernels(), confidence) {
  batch_.aux_layers = {exit_layer - 1};
}

void EarlyExit::share(const Executor& target) {
  executor_.emplace(target_,
                    RunnerLimits{.max_rows = max_sequences_,
                                 .max_logit_rows = std::min(max_sequences_, kLogitRows),
                                 .max_aux_layers = 1,
                                 .exit_layer = exit_layer_},
                    &pool_, &target);
}

void EarlyExit::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  drafts_.clear();
  draft_of_.clear();
  for (size_t i = 0; i < requests.size() && std::ssize(drafts_) < max_sequences_; ++i)
    begin(requests[i], trees[i]);
  for (int32_t level = 0; level < length_ && run_level(); ++level) {
  }
}

// Only where the target has computed all but the last known token: elsewhere a chunk of the prompt
// is to be computed first.
void EarlyExit::begin(const DraftRequest& request, DraftTree& tree) {
  const auto known = static_cast<int32_t>(request.tokens.size());
  if (request.most < 1 || request.computed != known - 1) return;
  draft_of_[request.id] = drafts_.size();
  drafts_.push_back({.request = &request, .tree = &tree, .position = known - 1});
}

ComputedRows EarlyExit::computed_rows(int64_t id) const {
  const auto found = draft_of_.find(id);
  if (found == draft_of_.end()) return {};
  const Draft& draft = drafts_[found->second];
  return {.position = draft.position, .hidden = draft.hidden};
}

// One more token for every draft that goes on. False when there is none.
bool EarlyExit::run_level() {
  batch_.rows.clear();
  batch_.sequences.clear();
  batch_.logit_rows.clear();
  going_.clear();
  points_.clear();
  for (Draft& draft : drafts_)
    if (draft.goes_on) add_row(draft);
  if (going_.empty()) return false;
  ForwardIo io;
  io.take_logits = [&](int64_t first, std::span<const float> logits) {
    const size_t count = logits.size() / static_cast<size_t>(target_.spec().vocab);
    sampler_.sample(pool_, std::span(points_).subspan(static_cast<size_t>(first), count), logits);
  };
  executor_->run(batch_, io);
  for (size_t row = 0; row < going_.size(); ++row) keep(row, io);
  return true;
}

// The last token of the draft, or the last known one.
void EarlyExit::add_row(Draft& draft) {
  const DraftRequest& request = *draft.request;
  const DraftTree& tree = *draft.tree;
  const auto row = static_cast<int32_t>(batch_.rows.size());
  batch_.rows.push_back({.token = tree.empty() ? request.tokens.back() : tree.back().token,
                         .position = draft.position + static_cast<int32_t>(tree.size()),
                         .sequence = row});
  batch_.sequences.push_back({{request.blocks.begin(), request.blocks.end()}});
  batch_.logit_rows.push_back(row);
  DraftPoint point{.request = &request};
  for (const DraftNode& node : tree) point.path.push_back(node.token);
  points_.push_back(std::move(point));
  going_.push_back(static_cast<size_t>(&draft - drafts_.data()));
}

// A row that is not finite is left to the target, which says so.
void EarlyExit::keep(size_t row, const ForwardIo& io) {
  Draft& draft = drafts_[going_[row]];
  DraftTree& tree = *draft.tree;
  draft.goes_on = !io.non_finite[row];
  if (!draft.goes_on) return;
  const auto hidden = io.aux_hidden.subspan(row * width_, width_);
  draft.hidden.insert(draft.hidden.end(), hidden.begin(), hidden.end());
  draft.goes_on = !points_[row].tokens.empty();
  if (!draft.goes_on) return;
  const int32_t token = points_[row].tokens[0];
  tree.push_back({token, static_cast<int32_t>(tree.size()) - 1});
  draft.goes_on = std::ssize(tree) < std::min(draft.request->most, length_) &&
                  !is_stop(*draft.request->params, token);
}

}  // namespace invar
