// A batch of a replica: its forward, its losses and their backward.
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "train/packed_batch.h"
#include "train/replica.h"

namespace invar {

namespace {

// Throws Error where a position's experts are not as many as there should be, ascending, of those
// that there are.
void check_routes(const PackedRow& row, const DecoderSpec& spec, int context) {
  if (row.routes.empty()) return;
  const size_t columns = static_cast<size_t>(routed_columns(spec));
  if (row.routes.size() != columns * static_cast<size_t>(context))
    fail("expected the experts of {} positions, {} of each, found {}", context, columns,
         row.routes.size());
  for (size_t at = 0; at < row.routes.size();)
    for (const LayerSpec& layer : spec.layer_specs) {
      const int chosen = layer.chosen_experts();
      const auto ids = std::span(row.routes).subspan(at, static_cast<size_t>(chosen));
      at += ids.size();
      if (ids.empty() || ids[0] < 0) continue;
      if (ids.back() >= layer.experts()->routing.experts ||
          std::ranges::adjacent_find(ids, std::greater_equal()) != ids.end())
        fail("expected {} ascending experts of {}, found {}", chosen,
             layer.experts()->routing.experts, fmt::join(ids, ", "));
    }
}

}  // namespace

// From [row][position][layer][chosen] to [layer][row][position][chosen].
void Trainer::Replica::give_experts(std::span<const PackedRow> rows) {
  given_experts_.clear();
  if (std::ranges::all_of(rows, [](const PackedRow& row) { return row.routes.empty(); })) return;
  const DecoderSpec& spec = options_.model.spec;
  const int columns = routed_columns(spec);
  for (const PackedRow& row : rows) check_routes(row, spec, options_.context);
  int first = 0;
  for (const LayerSpec& layer : spec.layer_specs) {
    const int chosen = layer.chosen_experts();
    for (const PackedRow& row : rows)
      for (int t = 0; t < options_.context; ++t)
        for (int i = first; i < first + chosen; ++i)
          given_experts_.push_back(
              row.routes.empty() ? -1 : row.routes[static_cast<size_t>(t * columns + i)]);
    first += chosen;
  }
}

void Trainer::Replica::build_batch(std::span<const PackedRow> rows) {
  fill_batch(rows, batch_);
  if (adapter_)
    for (BatchSequence& sequence : batch_.sequences) sequence.adapter = 0;
  give_experts(rows);
  wanted_ = {};
  for (const PackedRow& row : rows) {
    wanted_.targets.insert(wanted_.targets.end(), row.targets.begin(), row.targets.end());
    wanted_.weights.insert(wanted_.weights.end(), row.weights.begin(), row.weights.end());
  }
  if (!mtp_) return;
  mtp_->wanted = {};
  mtp_->batch = batch_;
  mtp_->batch.layer_begin = options_.model.spec.layers;
  mtp_->batch.layer_end = options_.model.spec.all_layers();
  mtp_->own_rows.clear();
  for (size_t t = 0; t < batch_.rows.size(); ++t) {
    const bool has = has_row_after(batch_, t, 1);
    mtp_->wanted.targets.push_back(has ? wanted_.targets[t + 1] : 0);
    mtp_->wanted.weights.push_back(has ? wanted_.weights[t + 1] : 0.0f);
    mtp_->batch.rows[t].token = wanted_.targets[t];
    const int every = options_.mtp_own_every, position = batch_.rows[t].position;
    if (every > 0 && position % every == every - 1)
      mtp_->own_rows.push_back(static_cast<int32_t>(t));
  }
}

// Logits and what the log-probabilities need, of all positions.
void Trainer::Replica::run_forward(std::span<const PackedRow> rows, Tape* tape) {
  build_batch(rows);
  io_.tape = tape;
  io_.times = times_;
  io_.given_experts = given_experts_;
  io_.keep_logits = true;
  forward(decoder_, batch_, kv_, forward_workspace_, solo_group(), io_);
  timed(times_, "log-sum-exp",
        [&] { scores_.compute(decoder_, kernels_, sampled_logits(), wanted_.targets); });
  note_failure(scores_);
}

// The rows that the targets were drawn from.
const float* Trainer::Replica::sampled_logits() {
  return sampled_ ? sampled_->process(io_.device_logits, wanted_.weights, pool_)
                  : io_.device_logits;
}

void Trainer::Replica::forward_mtp() {
  io_.device_hidden = tape_.module_input();
  forward(decoder_, mtp_->batch, kv_, forward_workspace_, solo_group(), io_);
  io_.device_hidden = nullptr;
}

// Puts what the module left at the row before into the input of some rows, as when it drafts.
void Trainer::Replica::take_own_rows() {
  const DecoderSpec& spec = options_.model.spec;
  const size_t bytes = static_cast<size_t>(spec.hidden) * sizeof(float);
  const float* left = tape_.output(1);
  if (tape_.norms_module_input()) {
    run("norm", decoder_.kernels.rms_norm,
        RmsNormParams{.x = left,
                      .x_stride = spec.hidden,
                      .rows_of = nullptr,
                      .weight = decoder_weights_.module_norm(),
                      .eps = spec.norm_eps,
                      .rows = std::ssize(batch_.rows),
                      .width = spec.hidden,
                      .out = {mtp_->left.data(), DType::f32, spec.hidden}});
    left = mtp_->left.data();
  }
  for (const int32_t row : mtp_->own_rows)
    decoder_.execution.stream->copy_rows(tape_.module_input() + int64_t{row} * spec.hidden, bytes,
                                         left + int64_t{row - 1} * spec.hidden, bytes, bytes, 1);
}

// Logits of the module, behind run_forward with a tape.
void Trainer::Replica::run_mtp() {
  forward_mtp();
  if (!mtp_->own_rows.empty()) {
    take_own_rows();
    forward_mtp();
  }
  score_module();
}

void Trainer::Replica::score_module() {
  exit_scores_.compute(decoder_, kernels_, io_.device_logits, mtp_->wanted.targets);
  note_failure(exit_scores_);
}

void Trainer::Replica::note_failure(const DeviceScores& scores) {
  note_failure([&](size_t t) { return scores.has_nan(t) || io_.non_finite[t]; });
}

void Trainer::Replica::note_failure(FunctionRef<bool(size_t)> has_failed) {
  for (size_t t = 0; t < batch_.rows.size() && failure_.empty(); ++t)
    if (has_failed(t))
      failure_ = fmt::format("the forward of position {} of row {}", t % options_.context,
                             t / options_.context);
}

// Sum of weight * -log-probability of each row, in f64.
void Trainer::Replica::record_losses(const Wanted& wanted, const DeviceScores& scores,
                                     double* losses) const {
  const size_t context = static_cast<size_t>(options_.context);
  for (size_t t = 0; t < wanted.targets.size(); ++t) {
    if (t % context == 0) losses[t / context] = 0;
    if (wanted.weights[t] != 0)
      losses[t / context] -= double{wanted.weights[t]} * scores.log_probability(t);
  }
}

// The gradient of `weight` times the mean loss over a step whose weights add up to `total`.
Activation Trainer::Replica::loss_gradient(const DeviceScores& scores, const Wanted& wanted,
                                           double total, float weight, const DeviceScores* teacher,
                                           DeviceArray<bf16_t>& memory) {
  std::vector<float> weights;
  const float temperature = sampled_ ? sampled_->temperature() : 1.0f;
  for (const float w : wanted.weights)
    weights.push_back(w == 0 ? 0.0f : static_cast<float>(w / total) * weight / temperature);
  device_->upload(row_weights_.data(), weights.data(), weights.size() * sizeof(float));
  const Activation out{memory.data(), DType::bf16, activation_stride(scores.vocab())};
  LossParams params{.logits = scores.logits(),
                    .rows = scores.rows(),
                    .stride = scores.vocab(),
                    .vocab = scores.vocab(),
                    .max = scores.device_max(),
                    .log_sum = scores.device_log_sum(),
                    .targets = scores.device_tokens(),
                    .weights = row_weights_.data(),
                    .teacher = nullptr,
                    .out = out};
  if (teacher) {
    params.teacher = teacher->logits();
    params.teacher_max = teacher->device_max();
    params.teacher_log_sum = teacher->device_log_sum();
    params.teacher_share = options_.teacher.share;
  }
  run("loss gradient", kernels_.loss, params);
  return out;
}

// The logits of an exit and their gradient.
ExitGradient Trainer::Replica::run_exit(size_t index, double total, float* gradients) {
  const DecoderSpec& spec = options_.model.spec;
  const ExitLoss& loss = options_.exits[index];
  Exit& exit = exits_[index];
  const int64_t rows = std::ssize(batch_.rows);
  if (gathered_) gathered_->need_head();
  const Activation normed{exit.normed.data(), DType::bf16, activation_stride(spec.hidden)};
  run("exits", decoder_.kernels.rms_norm,
      RmsNormParams{.x = tape_.input(loss.layers),
                    .x_stride = spec.hidden,
                    .rows_of = nullptr,
                    .weight = decoder_weights_.final_norm(),
                    .eps = spec.norm_eps,
                    .rows = rows,
                    .width = spec.hidden,
                    .out = normed});
  run("exits", decoder_.kernels.matmul,
      MatmulParams{.x = normed,
                   .w = decoder_weights_.head(),
                   .rows = rows,
                   .split_k = 1,
                   .bias = nullptr,
                   .accumulate = false,
                   .y = exit_logits_.data(),
                   .y_stride = spec.vocab});
  timed(times_, "exits",
        [&] { exit_scores_.compute(decoder_, kernels_, exit_logits_.data(), wanted_.targets); });
  note_failure(exit_scores_);
  return {.layers = loss.layers,
          .normed = normed,
          .d_logits = loss_gradient(exit_scores_, wanted_, total, loss.weight, teacher_scores(),
                                    exit.d_logits),
          .head = gradients + places_->place(exit.head_offset),
          .final_norm = gradients + places_->place(exit.norm_offset)};
}

// The recipe's weight of balance, of one packed row and layer.
double Trainer::Replica::balance_weight(size_t rows_of_step) const {
  const auto has_experts = [](const LayerSpec& layer) { return layer.experts() != nullptr; };
  const auto layers = std::ranges::count_if(options_.model.spec.layer_specs, has_experts);
  return layers == 0 ? 0 : options_.balance / (static_cast<double>(rows_of_step) * layers);
}

// Forward and backward of some rows, the first of which is row `first` of the step.
void Trainer::Replica::compute_batch(std::span<const PackedRow> rows, size_t first,
                                     const Totals& totals, float* gradients, bool begins,
                                     bool ends) {
  const size_t rows_of_step = losses_.size() / static_cast<size_t>(loss_count());
  run_forward(rows, &tape_);
  double* losses = &losses_[first];  // of one loss after the other
  record_losses(wanted_, scores_, losses);
  if (teacher_)
    timed(times_, "teacher", [&] {
      DeviceScores& scores = teacher_->scores;
      scores.compute(teacher_->model.decoder(), kernels_, teacher_->model.logits(batch_),
                     wanted_.targets);
      note_failure(scores);
    });
  BackwardIo io{
      .tape = &tape_,
      .d_logits = loss_gradient(scores_, wanted_, totals.model, 1.0f, teacher_scores(), d_logits_),
      .gradients = gradients,
      .places = &*places_,
      .adapter = adapter_ ? &adapter_->gradients() : nullptr,
      .begins = begins,
      .balance = balance_weight(rows_of_step),
      .balance_rows = options_.context,
      .given_experts = given_experts_,
      .forward_workspace = &forward_workspace_,
      .times = times_};
  std::vector<ExitGradient> exits;
  for (size_t i = 0; i < exits_.size(); ++i) {
    exits.push_back(run_exit(i, totals.model, gradients));
    record_losses(wanted_, exit_scores_, losses += rows_of_step);
  }
  io.exits = exits;
  MtpGradient mtp;
  if (mtp_) {
    run_mtp();
    record_losses(mtp_->wanted, exit_scores_, losses += rows_of_step);
    mtp = {.batch = &mtp_->batch,
           .own_rows = mtp_->own_rows,
           .d_logits = loss_gradient(exit_scores_, mtp_->wanted, totals.mtp, options_.mtp_weight,
                                     nullptr, mtp_->d_logits),
           .head = gradients + places_->place(mtp_->head_offset),
           .embedding = gradients + places_->place(mtp_->embedding_offset),
           .final_norm = gradients + places_->place(mtp_->norm_offset)};
    io.mtp = &mtp;
  }
  const auto unit_of = [&](int layer) -> const ParameterLayout::Unit& {
    return *std::ranges::find(layout_.units(), layer, &ParameterLayout::Unit::layer);
  };
  if (places_->in_turn())
    io.begin_layer = [&](int layer) { clear_sums(gradients, unit_of(layer)); };
  if (is_sharded() && ends) io.end_layer = [&](int layer) { keep_own(gradients, unit_of(layer)); };
  backward(decoder_, transposed_, kernels_, layout_, batch_, kv_, backward_workspace_, io);
}

std::string Trainer::Replica::log_probabilities(std::span<const PackedRow> rows, float* out,
                                                float* entropies) {
  failure_.clear();
  run_forward(rows, nullptr);
  if (!failure_.empty()) return failure_;
  const size_t rows_in_all = batch_.rows.size();
  for (size_t t = 0; t < rows_in_all; ++t) out[t] = scores_.log_probability(t);
  if (entropies) scores_.entropies(wanted_.weights, {entropies, rows_in_all}, pool_);
  return {};
}

std::string Trainer::Replica::logits(std::span<const PackedRow> rows,
                                     FunctionRef<void(size_t, std::span<const float>)> take) {
  failure_.clear();
  run_forward(rows, nullptr);
  if (!failure_.empty()) return failure_;
  const auto width = static_cast<size_t>(options_.model.spec.vocab);
  std::vector<float> fetched(device_->is_host() ? 0 : width);
  for (size_t t = 0; t < batch_.rows.size(); ++t) {
    const float* row = scores_.logits() + t * width;
    if (!device_->is_host()) {
      device_->download(fetched.data(), row, width * sizeof(float));
      row = fetched.data();
    }
    take(t, {row, width});
  }
  return {};
}

void Trainer::Replica::append_routed_experts(std::span<const PackedRow> rows,
                                             std::vector<int32_t>& to) {
  batch_.wants_experts = true;
  run_forward(rows, nullptr);
  batch_.wants_experts = false;
  const auto count = std::ssize(batch_.rows);
  for (int64_t t = 0; t < count; ++t) {
    const int32_t* layer_ids = io_.experts.data();
    for (const LayerSpec& layer : options_.model.spec.layer_specs) {
      const int64_t chosen = layer.chosen_experts();
      to.insert(to.end(), layer_ids + t * chosen, layer_ids + (t + 1) * chosen);
      layer_ids += count * chosen;
    }
  }
}

void Trainer::Replica::score_mtp(std::span<const PackedRow> rows, MtpScore& score) {
  run_forward(rows, &tape_);
  forward_mtp();
  score_module();
  const Wanted& wanted = mtp_->wanted;
  for (size_t t = 0; t < wanted.targets.size(); ++t) {
    if (wanted.weights[t] == 0) continue;
    score.loss -= exit_scores_.log_probability(t);
    score.agreed += exit_scores_.argmax(t) == scores_.argmax(t + 1);
    ++score.count;
  }
}

}  // namespace invar
