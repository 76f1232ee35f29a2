#include "drafters/mtp_drafter.h"

#include <algorithm>

#include "base/error.h"
#include "model/families/family_source.h"

namespace invar {

namespace {

constexpr int kBlockSize = 64;
constexpr int kLogitRows = 64;    // that there is room for; more are sampled in pieces
constexpr int kWaitingRows = 32;  // of a sequence; more are computed at once
constexpr int kIdleSteps = 4;     // without a draft, after which they are not

int32_t context_of(const Model& target, const DrafterRoom& room) {
  const int32_t most = target.spec().max_positions;
  return room.context > 0 ? std::min(room.context, most) : most;
}

int blocks_for(const Model& target, const DrafterRoom& room) {
  const DecoderSpec& spec = target.spec();
  const int64_t bytes = SequenceStore::block_bytes(
      states_of(spec, {}, {spec.layers, spec.layers + 1}), kBlockSize, target.arithmetic().cache);
  const int64_t longest = (context_of(target, room) + kBlockSize - 1) / kBlockSize + 1;
  return static_cast<int>(
      std::max(longest, std::min(room.max_sequences * longest, room.kv_bytes / bytes)));
}

Model& with_module(Model& target) {
  if (target.spec().mtp_layers == 0)
    fail_usage(
        "the method mtp drafts by the target's module of multi-token prediction, and {} has none "
        "(num_nextn_predict_layers or mtp_num_hidden_layers in config.json, and its tensors)",
        target.options().model);
  return target;
}

}  // namespace

MtpDrafter::MtpDrafter(Model& target, const MtpDrafterOptions& options, ThreadPool* threads)
    : options_(options),
      last_layer_(with_module(target).spec().layers - 1),
      width_(target.spec().hidden),
      context_(context_of(target, options.room)),
      reads_output_(module_reads_output(target.spec())),
      target_(target),
      pool_(threads ? *threads : target.pool()),
      blocks_(blocks_for(target, options.room), kBlockSize),
      executor_(target,
                {.blocks = blocks_for(target, options.room),
                 .block_size = kBlockSize,
                 .max_rows = options.room.catch_up_rows + options.room.max_sequences * kWaitingRows,
                 .max_logit_rows = kLogitRows,
                 .max_aux_layers = 1,
                 .mtp_module = true},
                threads),
      sampler_(pool_.size(), target.host_kernels(), options.confidence) {
  batch_.layer_begin = target.spec().layers;
  batch_.layer_end = target.spec().layers + 1;
  batch_.aux_layers = {target.spec().layers};
}

void MtpDrafter::forget(int64_t id) {
  sequences_.erase(id);
  blocks_.forget(id);
}

void MtpDrafter::recover() {
  executor_.recover();
  sequences_.clear();
  blocks_.forget_all();
  clear_batch();
  points_.clear();
}

void MtpDrafter::clear_batch() {
  batch_.rows.clear();
  batch_.sequences.clear();
  batch_.logit_rows.clear();
  batch_.features.clear();
}

void MtpDrafter::take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                             int64_t) {
  blocks_.begin_round();
  hidden = as_read(OutputNorm::model, hidden);
  for (const KeptRows& rows : kept) {
    Sequence& sequence = sequences_[rows.id];
    add_waiting(sequence, rows, hidden);
    sequence.idle_steps = rows.rows.size() == 1 ? sequence.idle_steps + 1 : 0;
    if (waiting_rows(sequence) <= kWaitingRows) continue;
    if (sequence.idle_steps > kIdleSteps)
      drop_oldest(sequence);
    else
      compute_waiting(rows.id, sequence, rows.tokens);
  }
  run_batch();
}

// Rows that it has come again after a preemption; before a gap nothing is of use.
void MtpDrafter::add_waiting(Sequence& s, const KeptRows& kept, std::span<const float> hidden) {
  const bool lost = s.done > 0 && blocks_.capacity(kept.id) == 0;
  const int32_t next = s.base + s.done + waiting_rows(s);
  if (lost || kept.position > next || (s.done == 0 && s.waiting.empty())) s.restart(kept.position);
  const int32_t have = s.base + s.done + waiting_rows(s);
  for (size_t i = 0; i < kept.rows.size(); ++i) {
    if (kept.position + static_cast<int32_t>(i) < have) continue;
    const auto row = hidden.subspan(int64_t{kept.rows[i]} * width_, width_);
    s.waiting.insert(s.waiting.end(), row.begin(), row.end());
  }
}

// Hidden states as the module reads them: as they are, or behind the norm that the logits are
// behind.
std::span<const float> MtpDrafter::as_read(OutputNorm norm, std::span<const float> hidden) {
  if (!reads_output_) return hidden;
  norm_output(target_, norm, hidden, normed_);
  return normed_;
}

// Drops the oldest rows of a sequence that nobody wants drafts of: its module begins at the rows
// that are left, should it be wanted again.
void MtpDrafter::drop_oldest(Sequence& s) {
  const int32_t surplus = waiting_rows(s) - kWaitingRows / 2;
  s.base += s.done + surplus;
  s.done = 0;
  s.waiting.erase(s.waiting.begin(), s.waiting.begin() + int64_t{surplus} * width_);
}

// All rows but the last that the next token is known of: that one is to draft.
void MtpDrafter::compute_waiting(int64_t id, Sequence& sequence, std::span<const int32_t> tokens) {
  const int32_t known = static_cast<int32_t>(tokens.size());
  const bool drafts_next = sequence.base + sequence.done + waiting_rows(sequence) == known - 1;
  const int32_t count = waiting_rows(sequence) - (drafts_next ? 1 : 0);
  for (int32_t left = count; left > 0;) {
    const int32_t room = executor_.limits().max_rows - static_cast<int32_t>(batch_.rows.size());
    const int32_t rows = std::min(left, room);
    if (rows > 0 && add_rows(id, sequence, tokens, rows) < 0)
      return sequence.restart(0);  // no blocks: it begins anew with the next rows
    left -= rows;
    if (left > 0) run_batch();
  }
}

int32_t MtpDrafter::add_sequence(int64_t id) {
  const auto blocks = blocks_.blocks(id);
  batch_.sequences.push_back({{blocks.begin(), blocks.end()}});
  return static_cast<int32_t>(batch_.sequences.size()) - 1;
}

// Adds the first `count` rows that wait. Returns the index of the last, or -1 when there are no
// blocks for them.
int32_t MtpDrafter::add_rows(int64_t id, Sequence& s, std::span<const int32_t> tokens,
                             int32_t count) {
  if (!blocks_.grow(id, s.done + count + options_.num_speculative_tokens)) return -1;
  const int32_t sequence = add_sequence(id);
  const auto end = s.waiting.begin() + int64_t{count} * width_;
  batch_.features.insert(batch_.features.end(), s.waiting.begin(), end);
  s.waiting.erase(s.waiting.begin(), end);
  for (int32_t i = 0; i < count; ++i, ++s.done)
    batch_.rows.push_back({.token = tokens[s.base + s.done + 1],
                           .position = s.done,
                           .sequence = sequence,
                           .features = static_cast<int32_t>(batch_.rows.size())});
  return static_cast<int32_t>(batch_.rows.size()) - 1;
}

void MtpDrafter::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  blocks_.begin_round();
  drafts_.clear();
  for (size_t i = 0; i < requests.size() && std::ssize(drafts_) < options_.room.max_sequences; ++i)
    if (Draft draft{.request = &requests[i], .tree = &trees[i]}; begin(draft))
      drafts_.push_back(draft);
  while (!drafts_.empty()) {
    for (const Draft& draft : drafts_) want(draft);
    run_batch();
    sample_next();
  }
}

// Adds the rows that wait; the last one's logits are the first draft. False when its hidden states
// are not the sequence's up to the last known token but one.
bool MtpDrafter::begin(Draft& draft) {
  const DraftRequest& request = *draft.request;
  const auto found = sequences_.find(request.id);
  if (found == sequences_.end() || request.most < 1) return false;
  Sequence& s = found->second;
  const int32_t count = waiting_rows(s), known = static_cast<int32_t>(request.tokens.size());
  if (count < 1 || s.base + s.done + count != known - 1) return false;
  if (s.done > 0 && blocks_.capacity(request.id) == 0) return false;  // others took its blocks
  draft.levels = std::min(request.most, options_.num_speculative_tokens);
  if (s.done + count + draft.levels > context_ ||
      add_rows(request.id, s, request.tokens, count) < 0)
    return false;
  draft.position = s.done - 1;
  s.idle_steps = 0;
  return true;
}

void MtpDrafter::want(const Draft& draft) {
  DraftPoint point{.request = draft.request};
  for (const DraftNode& node : *draft.tree) point.path.push_back(node.token);
  points_.push_back(std::move(point));
}

// Computes the rows that were added; the last of each sequence gives points_ their tokens.
void MtpDrafter::run_batch() {
  if (!points_.empty())
    for (size_t t = 0; t < batch_.rows.size(); ++t)
      if (t + 1 == batch_.rows.size() || batch_.rows[t + 1].sequence != batch_.rows[t].sequence)
        batch_.logit_rows.push_back(static_cast<int32_t>(t));
  if (!batch_.rows.empty()) {
    ForwardIo io;
    io.take_logits = [&](int64_t first, std::span<const float> logits) {
      const size_t count = logits.size() / static_cast<size_t>(target_.spec().vocab);
      sampler_.sample(pool_, std::span(points_).subspan(first, count), logits);
    };
    executor_.run(batch_, io);
    const auto left = as_read(OutputNorm::module, io.aux_hidden);
    next_hidden_.clear();
    for (const int32_t row : batch_.logit_rows) {
      const auto out = left.subspan(int64_t{row} * width_, width_);
      next_hidden_.insert(next_hidden_.end(), out.begin(), out.end());
    }
  }
  clear_batch();
}

// The drafts grow by a token each; those that go on get a row for the next.
void MtpDrafter::sample_next() {
  std::vector<Draft> going;
  for (size_t i = 0; i < drafts_.size(); ++i) {
    Draft draft = drafts_[i];
    if (points_[i].tokens.empty()) continue;
    const int32_t token = points_[i].tokens[0], level = static_cast<int32_t>(draft.tree->size());
    draft.tree->push_back({token, level - 1});
    if (level + 1 == draft.levels || is_stop(*draft.request->params, token)) continue;
    const auto hidden = std::span<const float>(next_hidden_).subspan(i * width_, width_);
    batch_.features.insert(batch_.features.end(), hidden.begin(), hidden.end());
    batch_.rows.push_back({.token = token,
                           .position = ++draft.position,
                           .sequence = add_sequence(draft.request->id),
                           .features = static_cast<int32_t>(batch_.rows.size())});
    going.push_back(draft);
  }
  drafts_ = std::move(going);
  points_.clear();
}

}  // namespace invar
