// How large an engine is: the rows of its steps, its blocks, its context.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/step_budget.h"
#include "model/adapter_step.h"
#include "scheduler/policies.h"

namespace invar {

namespace {

// Room for logits, so that a prompt's log-probabilities are not computed row by row.
constexpr int kLeastLogitRows = 32;
// And for those of drafts, of all sequences together; more of them are computed in pieces.
constexpr int kMostDraftLogitRows = 256;

int64_t blocks_of(int64_t tokens, int block_size) {
  return (tokens + block_size - 1) / block_size;
}

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

// The blocks for side branches of drafts, out of `room` blocks. `spare` of these are left beside
// the context of one sequence, which comes first. A step of one sequence takes `one` at most: alone
// it gets them, among many while they last. Where there are fewer, larger trees are cut to their
// trunks.
int64_t scratch_beside(int64_t room, int64_t spare, int64_t one, int64_t sequences) {
  const int64_t wanted = std::clamp<int64_t>(room / 16, one, one * sequences);
  return std::clamp<int64_t>(spare, 0, wanted);
}

// Memory that somebody gave does not go elsewhere in silence.
void say_scratch(int64_t room, int64_t blocks, int64_t one, int64_t block_bytes, bool was_given) {
  if (blocks < one)
    fmt::print(stderr,
               "invar: of the KV cache's {} blocks {} are left for side branches of drafts, of "
               "which one sequence's tree takes up to {}: larger trees are cut to their trunks "
               "(--kv-cache-memory)\n",
               room, blocks, one);
  else if (was_given)
    fmt::print(stderr,
               "invar: of the KV cache's {} blocks {} ({:.4g} MiB) are kept for side branches of "
               "drafts (--kv-cache-memory)\n",
               room, blocks, static_cast<double>(blocks * block_bytes) / (1 << 20));
}

}  // namespace

RunnerLimits Engine::limits(int blocks) const {
  const SchedulerOptions& s = options_.scheduler;
  const int rows = s.max_num_batched_tokens;
  const int drafts = proposer_ ? proposer_->most_nodes() : 0;
  const int samples =
      std::max(s.max_num_seqs, std::min(kMostDraftLogitRows, s.max_num_seqs * (1 + drafts)));
  return {.blocks = blocks + scratch_blocks_,
          .block_size = options_.block_size,
          .max_rows = rows,
          .max_logit_rows = std::min(rows, std::max(samples, kLeastLogitRows)),
          .max_aux_layers = static_cast<int>(aux_layers().size()) + options_.embeddings,
          .cells = s.max_num_seqs,
          .draft_cells = draft_cells_,
          .snapshots = snapshots_};
}

// Rows see what stands behind them: a step has the whole of a text, whatever was asked for. Where
// nothing was, a context of so many tokens bounds what a step takes.
void Engine::settle_whole_texts() {
  constexpr int kLongest = 8192;
  SchedulerOptions& s = options_.scheduler;
  if (s.max_model_len == 0) s.max_model_len = std::min(kLongest, model_.spec().max_positions);
  if (s.max_model_len > kMostRows)
    fail_usage(
        "expected a max-model-len of at most {} where attention is in both directions, found {}",
        kMostRows, s.max_model_len);
  if (!computes_whole_prompts(s.policy)) s.policy = "vllm";
  s.max_num_batched_tokens = std::max(s.max_num_batched_tokens, s.max_model_len);
  options_.step_rows = s.max_num_batched_tokens;
}

// Before memory is divided, since smaller steps leave more of it.
void Engine::settle_step_rows(ThreadPool* threads) {
  constexpr int kMeasuredPlaces = 2048;  // that the rows stand behind
  SchedulerOptions& s = options_.scheduler;
  int& rows = options_.step_rows;
  const int most = s.max_num_batched_tokens;
  const bool measured = options_.target_step_seconds > 0 && is_stall_free(s.policy);
  if (computes_whole_prompts(s.policy))
    rows = most;
  else if (rows == 0)
    rows = measured ? rows_within(options_.target_step_seconds, most,
                                  std::min(s.max_model_len, kMeasuredPlaces), model_, threads)
                    : most;
  rows = std::min(rows, most);
  s.max_num_batched_tokens = std::min(most, std::max(rows, s.max_num_seqs + prompt_rows()));
}

// The sum over all workers.
int64_t Engine::block_bytes() const {
  int64_t total = 0;
  for (int rank = 0; rank < model_.ranks(); ++rank)
    total += block_bytes_of(make_shard(model_.spec(), rank, model_.ranks()));
  return total;
}

int64_t Engine::cell_bytes() const {
  int64_t total = 0;
  for (int rank = 0; rank < model_.ranks(); ++rank)
    total += cell_bytes_of(make_shard(model_.spec(), rank, model_.ranks()));
  return total;
}

int64_t Engine::block_bytes_of(const Shard& shard) const {
  return SequenceStore::block_bytes(shapes_of(shard), options_.block_size,
                                    model_.arithmetic().cache);
}

// The bytes of all cells.
int64_t Engine::cell_bytes_of(const Shard& shard) const {
  return Runner::cell_bytes(shapes_of(shard), limits(0), model_.arithmetic().cache);
}

std::vector<StateShape> Engine::shapes_of(const Shard& shard) const {
  const DecoderSpec& spec = model_.spec();
  return states_of(spec, shard, {shard.layers.begin, std::min(spec.layers, shard.layers.end)});
}

// Each sequence has two snapshots: of its prompt and of its answer.
void Engine::settle_cells() {
  if (!has_states_) return;
  const int sequences = options_.scheduler.max_num_seqs;
  if (proposer_)
    draft_cells_ =
        Runner::draft_cells(sequences, proposer_->makes_branches(), proposer_->most_nodes());
  if (options_.prefix_caching) snapshots_ = 2 * sequences;
}

// As many blocks as --kv-cache-memory gives, or as fit into 90 % of what is free once a largest
// step has run, and never more than all sequences together can use.
int Engine::sized_blocks() {
  const SchedulerOptions& s = options_.scheduler;
  settle_cells();
  // With what the scheduler keeps free, a hundredth, beside them.
  const int64_t used = s.max_num_seqs * blocks_of(s.max_model_len, options_.block_size);
  const int64_t useful = used + used / 99;
  const int64_t room =
      options_.kv_bytes ? (options_.kv_bytes - cell_bytes()) / std::max<int64_t>(1, block_bytes())
                        : blocks_beside_a_step();
  if (proposer_ && (proposer_->makes_branches() || has_states_)) {
    const int64_t one = 2 * proposer_->most_nodes();
    const int64_t spare =
        options_.fit_context ? room / 2 : room - blocks_of(s.max_model_len, options_.block_size);
    scratch_blocks_ = static_cast<int32_t>(scratch_beside(room, spare, one, s.max_num_seqs));
    if (spare >= 0) say_scratch(room, scratch_blocks_, one, block_bytes(), options_.kv_bytes > 0);
  }
  const int64_t blocks = std::min({useful, room - scratch_blocks_, int64_t{1} << 24});
  if (blocks < 1 && has_states_)
    fail(
        "not enough memory for the states of sequences: {} of them need {:.4g} GiB, and a block of "
        "{} slots {} bytes beside them; expected more memory or a smaller max-num-seqs",
        s.max_num_seqs, gib(cell_bytes()), options_.block_size, block_bytes());
  if (blocks < 1)
    fail(
        "not enough memory for the KV cache: one block of {} slots needs {} bytes, which are not "
        "available",
        options_.block_size, block_bytes());
  return static_cast<int>(blocks);
}

// The model or the user says how long an answer may be. A smaller cache is no reason to cut
// answers; it is a reason not to start.
void Engine::settle_context(int blocks) {
  int32_t& context = options_.scheduler.max_model_len;
  const int64_t slots = int64_t{blocks} * options_.block_size;
  if (slots >= context) return;
  if (!options_.fit_context)
    fail(
        "not enough memory for the KV cache: one sequence of {} tokens, the context, needs "
        "{:.4g} GiB and there are {:.4g}, enough for a context of {}; --max-model-len {} or auto "
        "takes that",
        context, gib(blocks_of(context, options_.block_size) * block_bytes()),
        gib(blocks * block_bytes()), slots, slots);
  context = static_cast<int32_t>(slots);
}

// Blocks in 90 % of what every device has left beside the activations of a largest step. A GPU runs
// one, since its kernels take memory too.
int64_t Engine::blocks_beside_a_step() {
  const auto share = [&](int64_t bytes) { return bytes / 10 * 9 / options_.engines_sharing; };
  RunnerLimits most = limits(1);
  most.cells = 1;  // of all rows: what they leave is not read
  most.draft_cells = most.snapshots = 0;
  Executor trial(model_, most);
  if (model_.device().is_host())  // takes memory only when it is written
    return (share(static_cast<int64_t>(model_.device().available_bytes()) -
                  trial.workspace_bytes()) -
            cell_bytes()) /
           std::max<int64_t>(1, block_bytes());
  Batch batch;
  for (int row = 0; row < most.max_rows; ++row) {
    batch.sequences.push_back({{0}, 0});
    batch.rows.push_back({.token = 0, .position = 0, .sequence = row});
    if (row < most.max_logit_rows) batch.logit_rows.push_back(row);
  }
  ForwardIo io;
  trial.run(batch, io);
  struct Needed {
    int64_t block = 0, cells = 0, workers = 0;
  };
  std::map<Device*, Needed> needed_on;  // by all workers of the device
  const std::span<Worker* const> here = model_.workers().here();
  const int64_t workers = model_.workers().workers_on_device_of_home();
  for (const Worker* worker : here) {
    const Shard& shard = worker->weights().shard();
    Needed& needed = needed_on[&worker->device()];
    needed.block += workers * block_bytes_of(shard);
    needed.cells += workers * cell_bytes_of(shard);
    needed.workers += workers;
  }
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& [device, needed] : needed_on) {
    const int64_t left = share(static_cast<int64_t>(device->available_bytes())) - needed.cells -
                         needed.workers * adapter_bytes();
    least = std::min(least, left / std::max<int64_t>(1, needed.block));
  }
  return least;
}

// Adapters come into a device's memory later.
int64_t Engine::adapter_bytes() const {
  const AdapterLimits& most = options_.adapters;
  if (most.most == 0) return 0;
  const DecoderSpec& spec = model_.spec();
  const AdapterUser user = model_.adapter_user();
  return most.most * most_adapter_bytes(spec, user, model_.arithmetic().weights, most.most_rank) +
         AdapterStep::most_bytes(spec, user, options_.step_rows, most.most_rank);
}

}  // namespace invar
