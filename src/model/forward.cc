#include "model/forward.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "model/forward_pass.h"

namespace invar {

ForwardPass::ForwardPass(Decoder& decoder, const Batch& batch, SequenceStore& kv, Workspace& ws,
                         Group& group, ForwardIo& io)
    : model_(decoder),
      spec_(decoder.spec),
      shard_(decoder.weights->shard()),
      batch_(batch),
      kv_(kv),
      ws_(ws),
      group_(group),
      io_(io),
      rows_(static_cast<int64_t>(batch.rows.size())),
      layer_end_(batch.layer_end < 0 ? decoder.spec.layers : batch.layer_end),
      hooks_(decoder, batch, ws, io),
      ops_(decoder, rows_, ws, group, hooks_, io) {
  CHECK(rows_ <= ws.max_rows, "a batch larger than its workspace");
  CHECK(std::ssize(batch.logit_rows) <= ws.max_logit_rows || io.take_logits || group.rank() > 0,
        "more logits than there is room for");
  const int last = batch.layer_begin == spec_.layers ? spec_.all_layers() : spec_.layers;
  CHECK(0 <= batch.layer_begin && batch.layer_begin <= layer_end_ && layer_end_ <= last,
        "layer range");
}

// Sends the host's tables of the step on their way to the device.
void ForwardPass::prepare() {
  const Execution& on = model_.execution;
  int positions = 0;
  for (const BatchRow& row : batch_.rows)
    positions = std::max({positions, row.position + 1, rotation_of(row) + 1});
  model_.ropes.fill(positions, on);
  kv_.copy_cells(*on.stream, batch_.chunk_copies, batch_.state_copies);
  ws_.tables = ws_.table_builder.build(batch_, kv_.block_size(), on, kv_.cells());
  ws_.adapters.begin(model_, batch_, ws_.max_rows);
  take_tokens();
  if (has_nan_flags()) {
    std::ranges::copy(io_.nan_flags.first(rows_), ws_.host_nan_flags.data());
    on.stream->upload(ws_.non_finite.data(), ws_.host_nan_flags.data(), rows_ * sizeof(bool));
  }
  if (!embeds()) take_hidden();
}

// The first layer of the range goes on from these.
void ForwardPass::take_hidden() {
  const Execution& on = model_.execution;
  if (io_.device_hidden) {
    const size_t bytes = hidden_size() * sizeof(float);
    on.stream->copy_rows(hidden(), bytes, io_.device_hidden, bytes, bytes, 1);
  } else if (!batch_.features.empty()) {
    CHECK(std::ranges::none_of(batch_.rows, [](const BatchRow& row) { return row.features < 0; }),
          "a row without features, of which a layer makes its hidden state");
    take_features();
  } else {
    CHECK(io_.hidden.size() >= hidden_size(), "a later stage needs the hidden states");
    upload(io_.hidden.first(hidden_size()), hidden(),
           io_.hidden_taken ? io_.hidden.data() : ws_.host_hidden.data());
    if (io_.hidden_taken) on.stream->record(*io_.hidden_taken);
  }
}

// Takes the features of rows: those that stand together in one copy.
void ForwardPass::take_features() {
  const bool fused = batch_.fuses_features;
  const std::vector<BatchRow>& rows = batch_.rows;
  const auto width = static_cast<size_t>(
      fused ? features_of(spec_.layer_specs.front(), spec_.hidden) : spec_.hidden);
  for (size_t t = 0, end = 0; t < rows.size(); t = end) {
    end = t + 1;
    if (rows[t].features < 0) continue;
    while (end < rows.size() && rows[end].features == rows[end - 1].features + 1) ++end;
    const size_t first = static_cast<size_t>(rows[t].features) * width, count = (end - t) * width;
    CHECK(first + count <= batch_.features.size(), "a row of features that is not there");
    upload(std::span(batch_.features).subspan(first, count),
           (fused ? ws_.features : ws_.hidden).data() + t * width,
           (fused ? ws_.host_features : ws_.host_hidden).data() + t * width);
  }
}

void ForwardPass::upload(std::span<const float> from, float* to, float* pinned) {
  const Execution& on = model_.execution;
  float* staged = on.device->is_host() ? to : pinned;
  if (staged != from.data()) std::memcpy(staged, from.data(), from.size_bytes());
  if (staged != to) on.stream->upload(to, staged, from.size_bytes());
}

// Takes the tokens that only the device knows: those that stand together there in one copy.
void ForwardPass::take_tokens() {
  const std::vector<BatchRow>& rows = batch_.rows;
  for (size_t t = 0, end = 0; t < rows.size(); t = end) {
    end = t + 1;
    if (rows[t].token >= 0) continue;
    while (end < rows.size() && rows[end].token == rows[end - 1].token - 1) ++end;
    CHECK(io_.sampled, "a row of a token that nobody has sampled");
    const size_t bytes = (end - t) * sizeof(int32_t);
    model_.execution.stream->copy_rows(ws_.tables.tokens + t, bytes, io_.sampled + ~rows[t].token,
                                       bytes, bytes, 1);
  }
}

void ForwardPass::launch() {
  if (rows_ == 0) return;
  start();
  ws_.adapters.poison(model_, hidden());
  for (int layer = batch_.layer_begin; layer < layer_end_; ++layer) {
    if (std::ranges::binary_search(batch_.skipped_layers, layer)) continue;
    if (model_.supply) model_.supply->need_layer(layer);
    run_layer(layer);
    if (hooks_.takes_hidden_after(layer)) ops_.settle();
    hooks_.after_layer(layer);
  }
  ops_.settle();
  if (is_last_stage()) head(0);
}

void ForwardPass::launch(StepGraphs* graphs) {
  if (!graphs || !can_be_recorded()) return launch();
  graphs->launch({.rows = rows_,
                  .logit_rows = std::ssize(batch_.logit_rows),
                  .layer_begin = batch_.layer_begin,
                  .layer_end = layer_end_,
                  .skipped_layers = batch_.skipped_layers,
                  .has_nan_flags = has_nan_flags(),
                  .fuses_features = batch_.fuses_features,
                  .aux_layers = batch_.aux_layers,
                  .tables = ws_.tables,
                  .adapters = ws_.adapters.shape()},
                 *model_.execution.stream, [&] { launch(); });
}

// On a device, where nobody looks at the operations and nothing but them is waited for. Features
// come into the residual stream between them.
bool ForwardPass::can_be_recorded() const {
  const bool places_features = embeds() && !batch_.features.empty();
  return !model_.device().is_host() && !places_features && rows_ > 0 &&
         rows_ <= StepGraphs::kMostRows && ranks_can_be_recorded() && !batch_.wants_experts &&
         !io_.trace && !io_.times && !io_.tape && !ws_.adapters.has_broken();
}

// Where experts are put together the host looks how many rows each rank has.
bool ForwardPass::ranks_can_be_recorded() const {
  return group_.size() == 1 || (group_.can_be_recorded() &&
                                std::ranges::none_of(spec_.layer_specs, [](const LayerSpec& l) {
                                  return !!l.experts();
                                }));
}

// h = rows of the embedding and of features; or what the stage before left, or what the first layer
// joins
void ForwardPass::start() {
  if (!has_nan_flags()) model_.execution.stream->clear(ws_.non_finite.data(), rows_ * sizeof(bool));
  if (!embeds()) return;
  if (model_.supply) model_.supply->need_embedding();
  ops_.embed(hidden());
  take_features();
  hooks_.trace("embed", -1, hidden(), spec_.hidden, rows_);
  ops_.make_layer_inputs();
}

void ForwardPass::run_layer(int layer) {
  const size_t number = static_cast<size_t>(layer);
  const LayerParts& parts = model_.parts[number];
  const auto pass_of = [&](size_t part) {
    return PartPass{.layer = layer,
                    .weights = *model_.weights->layers()[number][part],
                    .activations = *hooks_.layer(layer)[part],
                    .in_turn = *ws_.layers[number][part],
                    .kv = kv_.layer(spec_.kv_layer(layer)),
                    .chunks = kv_.chunks(layer),
                    .states = kv_.states(layer),
                    .hidden = hidden(),
                    .features = batch_.fuses_features ? ws_.features.data() : nullptr,
                    .rows = rows_,
                    .ops = ops_,
                    .hooks = hooks_,
                    .next = matrix_behind(layer, part)};
  };
  for (size_t part = 0; part < parts.size(); ++part) parts[part]->begin(pass_of(part));
  for (size_t part = 0; part < parts.size(); ++part) parts[part]->forward(pass_of(part));
}

const Matrix* ForwardPass::matrix_behind(int layer, size_t part) const {
  const LayerParts& parts = model_.parts[static_cast<size_t>(layer)];
  if (++part == parts.size()) {
    ++layer;
    part = 0;
  }
  if (!shard_.has_layer(layer) || layer >= std::ssize(model_.parts)) return nullptr;
  const size_t number = static_cast<size_t>(layer);
  if (model_.parts[number].size() <= part) return nullptr;
  const LayerWeights& weights = model_.weights->layers()[number];
  return weights.size() > part ? model_.parts[number][part]->first_matrix(*weights[part]) : nullptr;
}

// Logits of the rows that want them, from the last residual stream: as many as there is room for,
// from the `first` on.
void ForwardPass::head(int64_t first) {
  const int64_t count = logits_from(first);
  if (count == 0) return;
  if (model_.supply) model_.supply->need_head();
  const int module = is_mtp();
  const Activation normed = hooks_.final_normed(module);
  const int32_t* rows = batch_.logit_rows.data() + first;
  if (first == 0) hooks_.keep_output(module);
  if (float* input = module ? nullptr : hooks_.keep_module_input())
    ops_.norm(hidden(), model_.weights->final_norm(), {input, DType::f32, spec_.hidden});
  ops_.norm(hidden(), is_mtp() ? model_.weights->module_norm() : model_.weights->final_norm(),
            normed, ws_.tables.logit_rows + first, count,
            is_mtp() ? nullptr : model_.weights->final_norm_bias());
  hooks_.trace("final_norm", -1, normed, spec_.hidden, count, rows);

  const bool alone = group_.size() == 1;
  float* mine = alone ? ws_.logits.data() : ws_.rank_logits.data();
  ops_.product("logits", normed, model_.weights->head(), nullptr, count, mine,
               alone ? spec_.vocab : shard_.vocab_stride);
  if (!alone) ops_.gather_logits(mine, count);
  ops_.scale_logits(count);
  hooks_.trace("logits", -1, ws_.logits.data(), spec_.vocab, count, rows);
}

int64_t ForwardPass::logits_from(int64_t first) const {
  return std::min<int64_t>(ws_.max_logit_rows, std::ssize(batch_.logit_rows) - first);
}

// Collects the caller's results. Only here does the host wait for the device.
void ForwardPass::collect() {
  Stream& stream = *model_.execution.stream;
  const bool has_logits = is_last_stage() && !batch_.logit_rows.empty();
  if (leaves_nothing_to_host()) return compute_all_logits();
  io_.logits = io_.aux_hidden = {};
  io_.device_logits = has_logits ? ws_.logits.data() : nullptr;
  if (rows_ == 0) return;
  io_.aux_hidden = hooks_.aux_hidden();
  io_.experts = hooks_.experts();
  if (!is_last_stage() && !io_.device_hidden)
    io_.hidden = to_host(ws_.hidden, io_.hidden_out ? io_.hidden_out : ws_.host_hidden.data(),
                         rows_ * spec_.hidden);
  std::swap(ws_.host_non_finite, ws_.last_non_finite);
  bool* failed = ws_.host_non_finite.data();
  stream.download(failed, ws_.non_finite.data(), rows_ * sizeof(bool));
  io_.non_finite = {failed, static_cast<size_t>(rows_)};
  if (io_.keep_logits && is_last_stage() && batch_.features.empty()) return;
  if (has_logits) io_.logits = logits_to_host(0);
  stream.wait();
  group_.expect_whole();
  if (has_logits) hand_over();
}

// Whether this is a rank beside the one that answers, so that its host goes on: a wait for that
// one's logits includes this one's part of them. The uploads must have arrived before the next step
// overwrites them.
bool ForwardPass::leaves_nothing_to_host() const {
  return group_.rank() > 0 && !model_.device().is_host() && is_first_stage() && is_last_stage() &&
         batch_.aux_layers.empty() && !batch_.wants_experts && !reads_features() &&
         batch_.features.empty() && !io_.trace;
}

void ForwardPass::compute_all_logits() {
  for (int64_t first = logits_from(0); rows_ > 0 && first < std::ssize(batch_.logit_rows);
       first += logits_from(first))
    head(first);
}

// The logits go to whoever takes them, and those that there was no room for are computed then.
void ForwardPass::hand_over() {
  const int64_t count = std::ssize(batch_.logit_rows);
  for (int64_t first = 0;;) {
    if (io_.take_logits) io_.take_logits(first, std::exchange(io_.logits, {}));
    first += logits_from(first);
    if (first == count) return;
    head(first);
    io_.logits = logits_to_host(first);
    model_.execution.stream->wait();
    group_.expect_whole();
  }
}

std::span<const float> ForwardPass::logits_to_host(int64_t first) const {
  return to_host(ws_.logits, ws_.host_logits.data(), logits_from(first) * spec_.vocab);
}

// The first elements of a device's array as the host sees them once the stream is waited for.
std::span<float> ForwardPass::to_host(const DeviceArray<float>& from, float* copy,
                                      int64_t count) const {
  const size_t size = static_cast<size_t>(count);
  if (model_.device().is_host()) return {from.data(), size};
  model_.execution.stream->download(copy, from.data(), size * sizeof(float));
  return {copy, size};
}

void forward(Decoder& decoder, const Batch& batch, SequenceStore& kv, Workspace& workspace,
             Group& group, ForwardIo& io, StepGraphs* graphs) {
  const ScopedFlushToZero flush;
  ForwardPass pass(decoder, batch, kv, workspace, group, io);
  timed(io.times, kHostParts.tables, [&] { pass.prepare(); });
  group.begin_step(decoder.execution);
  pass.launch(graphs);
  pass.collect();
  group.end_step(decoder.execution);
}

}  // namespace invar
