#include "engine/runner.h"

#include <algorithm>

#include "base/check.h"
#include "base/timer.h"

namespace invar {

namespace {

// A piece of n rows crosses n / 64 boundaries, and one more where it does not begin at one: the
// scheduler's do, but for one of the oldest sequence.
ScratchCells scratch_cells(const RunnerLimits& limits) {
  return {.chunks = limits.max_rows / kBoundary + 2 + limits.draft_cells,
          .states = limits.drafts_move_states ? limits.draft_cells : 0};
}

// Makes the storage of the layers that the decoder runs in this stage, or of its module alone.
std::unique_ptr<SequenceStore> make_storage(const Decoder& decoder, const RunnerLimits& limits) {
  const Shard& shard = decoder.weights->shard();
  const int first = limits.mtp_module ? decoder.spec.layers : shard.layers.begin;
  const int end =
      limits.mtp_module ? shard.layers.end : std::min(shard.layers.end, decoder.spec.layers);
  const LayerRange layers{first, std::max(first, end)};
  const bool keeps_states = has_states(decoder.spec) && !limits.mtp_module;  // a module attends
  return std::make_unique<SequenceStore>(decoder.device(), states_of(decoder.spec, shard, layers),
                                         StoreOptions{.blocks = limits.blocks,
                                                      .block_size = limits.block_size,
                                                      .cells = keeps_states ? limits.cells : 0,
                                                      .scratch = scratch_cells(limits),
                                                      .snapshots = limits.snapshots,
                                                      .first_layer = first,
                                                      .layout = decoder.kernels.cache,
                                                      .type = decoder.arithmetic.cache});
}

}  // namespace

Runner::Runner(Decoder decoder, const RunnerLimits& limits, SequenceStore* shared_keys)
    : limits_(limits),
      decoder_(std::move(decoder)),
      shard_(decoder_.weights->shard()),
      own_kv_(shared_keys ? nullptr : make_storage(decoder_, limits)),
      kv_(shared_keys ? *shared_keys : *own_kv_),
      workspace_(decoder_, limits.max_rows, shard_.has_head ? limits.max_logit_rows : 1,
                 limits.max_aux_layers) {}

int64_t Runner::cell_bytes(std::span<const StateShape> layers, const RunnerLimits& limits,
                           CacheType type) {
  const ScratchCells scratch = scratch_cells(limits);
  return (limits.cells + scratch.chunks) * SequenceStore::chunk_bytes(layers, type) +
         (limits.cells + scratch.states + limits.snapshots) *
             SequenceStore::state_bytes(layers, type);
}

void Runner::run(const Batch& batch, const WorkerLinks& links, ForwardIo& io) {
  if (links.before || links.after) return run_stage(batch, links, io);
  forward(decoder_, batch, kv_, workspace_, *links.group, io,
          limits_.records_steps ? &graphs_ : nullptr);
}

LayerRange Runner::own_layers(const Batch& batch) const {
  const int end = batch.layer_end < 0 ? decoder_.spec.layers : batch.layer_end;
  return {std::clamp(shard_.layers.begin, batch.layer_begin, end),
          std::clamp(shard_.layers.end, batch.layer_begin, end)};
}

// The first stage that has one of the batch's layers begins; every one behind it goes on from what
// the one before has left, also where it has nothing to add.
void Runner::run_stage(const Batch& batch, const WorkerLinks& links, ForwardIo& io) {
  if (shard_.layers.end <= batch.layer_begin) return;
  const bool begins = shard_.layers.begin <= batch.layer_begin;
  take_part(batch, own_layers(batch));
  const size_t rows = batch.rows.size();
  carried_.hidden = place_of_hidden().first(rows * decoder_.spec.hidden);
  carried_.others.clear();
  if (!begins) {
    part_.features.clear();
    receive(batch, *links.before);
  }
  float* place = nullptr;
  if (is_placed(batch, links.after))
    place = reinterpret_cast<float*>(links.after->place(carried_.hidden.size_bytes()));
  const bool is_end = part_.layer_end >= decoder_.spec.layers && shard_.has_head;
  if (part_.layer_begin < part_.layer_end || is_end) {
    if (!begins) {
      io.hidden = carried_.hidden;
      io.hidden_taken = is_placed(batch, links.before) ? taken_.get() : nullptr;
      io.nan_flags = {carried_.nan_flags.get(), rows};
    }
    io.hidden_out = place;
    forward(decoder_, part_, kv_, workspace_, *links.group, io,
            limits_.records_steps ? &graphs_ : nullptr);
    io.nan_flags = {};
    add_results(io);
  }
  if (links.after) return send(batch, *links.after, place);
  io.hidden = carried_.hidden;
  io.aux_hidden = carried_.others;
  if (!is_end) io.non_finite = {carried_.nan_flags.get(), rows};
}

// From where the device uploads it, and to where it downloads it: nothing is copied on the way.
std::span<float> Runner::place_of_hidden() const {
  if (decoder_.device().is_host()) return {workspace_.hidden.data(), workspace_.hidden.size()};
  return {workspace_.host_hidden.data(), workspace_.host_hidden.size()};
}

// The batch as this stage runs it.
void Runner::take_part(const Batch& batch, LayerRange layers) {
  part_ = batch;
  part_.layer_begin = layers.begin;
  part_.layer_end = layers.end;
  std::erase_if(part_.aux_layers,
                [&](int layer) { return layer < layers.begin || layer >= layers.end; });
  if (!shard_.has_head) part_.logit_rows.clear();
  if (!carried_.nan_flags) carried_.nan_flags = std::make_unique<bool[]>(limits_.max_rows);
}

bool Runner::is_placed(const Batch& batch, const Channel* channel) const {
  return channel && !decoder_.device().is_host() && batch.aux_layers.empty() &&
         channel->has_place_for(carried_.hidden.size_bytes());
}

void Runner::receive(const Batch& batch, Channel& from) {
  const auto before =
      std::ranges::count_if(batch.aux_layers, [&](int l) { return l < shard_.layers.begin; });
  const size_t rows = batch.rows.size();
  carried_.others.resize(static_cast<size_t>(before) * carried_.hidden.size());
  const Timer timer;
  from.release();
  if (is_placed(batch, &from)) {
    if (!taken_) taken_ = decoder_.device().make_event();
    std::byte* placed = from.receive_placed(carried_.hidden.size_bytes(), taken_);
    carried_.hidden = {reinterpret_cast<float*>(placed), carried_.hidden.size()};
  } else {
    from.receive(carried_.hidden.data(), carried_.hidden.size_bytes());
  }
  if (before > 0) from.receive(carried_.others.data(), carried_.others.size() * sizeof(float));
  from.receive(carried_.nan_flags.get(), rows);
  waited_seconds_ += timer.seconds();
}

// The residual stream in the place of the one before, hidden states behind those of other stages.
void Runner::add_results(const ForwardIo& io) {
  const size_t values = part_.rows.size() * decoder_.spec.hidden;
  if (io.hidden.size() >= values) carried_.hidden = io.hidden.first(values);
  carried_.others.insert(carried_.others.end(), io.aux_hidden.begin(), io.aux_hidden.end());
  if (!io.keep_logits) std::ranges::copy(io.non_finite, carried_.nan_flags.get());
}

void Runner::send(const Batch& batch, Channel& to, float* place) const {
  if (place) {
    if (carried_.hidden.data() != place) std::ranges::copy(carried_.hidden, place);
    to.send_placed();
  } else {
    to.send(carried_.hidden.data(), carried_.hidden.size_bytes());
  }
  if (!carried_.others.empty())
    to.send(carried_.others.data(), carried_.others.size() * sizeof(float));
  to.send(carried_.nan_flags.get(), batch.rows.size());
}

void Runner::copy_slots(const std::vector<SlotCopy>& copies) {
  const Execution& on = decoder_.execution;
  copies_.begin(on, StepUpload::bytes_of<SlotCopy>(copies.size()));
  const SlotCopy* list = copies_.put(std::span<const SlotCopy>(copies));
  copies_.send(on);
  for (const KvLayer& layer : kv_.layers())
    decoder_.run(layer.stored.data ? decoder_.kernels.copy_stored : decoder_.kernels.copy_slots,
                 CopySlotsParams{layer, list, std::ssize(copies)});
}

}  // namespace invar
