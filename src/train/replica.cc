#include "train/replica.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"
#include "kernels/select.h"
#include "model/families/family_source.h"
#include "train/packed_batch.h"

namespace invar {

namespace {

// Whether the token after the target of position i belongs to the same sequence.
bool has_second(const PackedRow& row, size_t i, size_t next_sequence) {
  const size_t end = next_sequence < row.begins.size()
                         ? static_cast<size_t>(row.begins[next_sequence])
                         : row.tokens.size();
  return i + 1 < end;
}

// Matrices decay.
std::vector<AdamW::Tensor> optimized(const ParameterLayout& layout) {
  std::vector<AdamW::Tensor> tensors;
  for (const ParameterLayout::Slot& slot : layout.slots())
    tensors.push_back({slot.tensor.name, slot.offset, slot.count, slot.tensor.shape.size() == 2});
  return tensors;
}

DeviceArray<float> floats(Device& device, int64_t count, const char* what) {
  return {device, static_cast<size_t>(count), what};
}

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
      const int chosen = layer.experts ? layer.experts->routing.chosen : 0;
      const auto ids = std::span(row.routes).subspan(at, static_cast<size_t>(chosen));
      at += ids.size();
      if (ids.empty() || ids[0] < 0) continue;
      if (ids.back() >= layer.experts->routing.experts ||
          std::ranges::adjacent_find(ids, std::greater_equal()) != ids.end())
        fail("expected {} ascending experts of {}, found {}", chosen,
             layer.experts->routing.experts, fmt::join(ids, ", "));
    }
}

}  // namespace

Trainer::Replica::Replica(const TrainerOptions& options, const ParameterLayout& layout,
                          Group& group)
    : options_(options),
      layout_(layout),
      group_(group),
      device_(make_host_device()),
      pool_(options.threads),
      kernels_(select_training_kernels(Order::portable, options.instruction_set)),
      optimizer_(options.optimizer, kernels_, optimized(layout)),
      shares_(share_tensors(layout, group.size())),
      owned_(shares_[static_cast<size_t>(group.rank())]),
      master_(floats(*device_, owned_.count(), "the master weights")),
      first_(floats(*device_, owned_.count(), "the optimizer's state")),
      second_(floats(*device_, owned_.count(), "the optimizer's state")),
      rounded_(*device_, static_cast<size_t>(layout.size()), "the rounded weights"),
      source_(layout, rounded_.data()),
      decoders_own_(stores_offsets(options.model.spec)
                        ? invar::decoder_tensors(options.model.spec, source_)
                        : nullptr),
      decoder_weights_(options.model.spec, {}, make_shard(options.model.spec, 0, 1),
                       decoder_tensors(), *device_, pool_),
      decoder_(options.model.spec, {}, select_kernels(Order::portable, options.instruction_set),
               decoder_weights_, *device_, &pool_),
      transposed_(options.model.spec, *device_),
      kv_(*device_, options.model.spec.all_layers(),
          packed_blocks(options.batch_rows, options.context), kTrainingBlockSize,
          options.model.spec.kv_heads, options.model.spec.head_dim),
      forward_workspace_(decoder_, options.batch_rows * options.context,
                         options.batch_rows * options.context),
      tape_(decoder_, kernels_, options.batch_rows * options.context, options.recompute),
      backward_workspace_(decoder_, kernels_, options.batch_rows * options.context,
                          options.context),
      scores_(options.batch_rows * options.context),
      exit_scores_(options.exits.empty() && options.model.spec.mtp_layers == 0
                       ? 0
                       : options.batch_rows * options.context) {
  const DecoderSpec& spec = options.model.spec;
  const int64_t positions = int64_t{options.batch_rows} * options.context;
  const auto bf16s = [&](int64_t width, const char* what) {
    return DeviceArray<bf16_t>(*device_, static_cast<size_t>(positions * activation_stride(width)),
                               what);
  };
  d_logits_ = bf16s(spec.vocab, "the gradient of the logits");
  // Behind the gradients of tensors stand the chains of exits.
  gradient_size_ = layout.gradient_size();
  for (size_t i = 0; i < options.exits.size(); ++i) {
    const int64_t head = round_up(int64_t{spec.vocab} * spec.hidden, kPanelWidth);
    exits_.push_back({bf16s(spec.hidden, "an exit"), bf16s(spec.vocab, "an exit's gradient"),
                      gradient_size_, gradient_size_ + head});
    gradient_size_ += head + round_up(spec.hidden, kPanelWidth);
  }
  if (spec.mtp_layers > 0) {
    const int64_t vocabulary = round_up(int64_t{spec.vocab} * spec.hidden, kPanelWidth);
    mtp_.reset(new Mtp{bf16s(spec.vocab, "the gradient of the logits"),
                       gradient_size_,
                       gradient_size_ + vocabulary,
                       {},
                       {}});
    gradient_size_ += 2 * vocabulary;
  }
  if (!exits_.empty()) exit_logits_ = floats(*device_, positions * spec.vocab, "an exit's logits");
  if (options.teacher.weights)
    teacher_ = std::make_unique<Teacher>(
        options.teacher, options.instruction_set, *device_, pool_, static_cast<int>(positions),
        packed_blocks(options.batch_rows, options.context), kTrainingBlockSize);
  // A rank's groups meet two and two: at most one buffer waits on each level of the tree.
  const int levels = std::bit_width(static_cast<unsigned>(options.groups / options.ranks));
  for (int i = 0; i < levels; ++i)
    gradients_.push_back(floats(*device_, gradient_size_, "gradients"));
}

void Trainer::Replica::load(const TrainingState& state) {
  std::copy_n(&state.master[owned_.begin], owned_.count(), master_.data());
  std::copy_n(&state.first[owned_.begin], owned_.count(), first_.data());
  std::copy_n(&state.second[owned_.begin], owned_.count(), second_.data());
  for (int64_t i = 0; i < layout_.size(); ++i) rounded_.data()[i] = f32_to_bf16(state.master[i]);
  publish();
}

void Trainer::Replica::copy_state(TrainingState& state) const {
  std::copy_n(master_.data(), owned_.count(), &state.master[owned_.begin]);
  std::copy_n(first_.data(), owned_.count(), &state.first[owned_.begin]);
  std::copy_n(second_.data(), owned_.count(), &state.second[owned_.begin]);
}

void Trainer::Replica::gather_state(TrainingState* state) const {
  const auto gather = [&](const DeviceArray<float>& own, std::vector<float> TrainingState::*all) {
    exchange_owned(group_, shares_, own.data(), state ? (state->*all).data() : nullptr, {});
  };
  gather(master_, &TrainingState::master);
  gather(first_, &TrainingState::first);
  gather(second_, &TrainingState::second);
}

// The rounded weights become those of the forward and the backward.
void Trainer::Replica::publish() {
  timed(times_, "pack weights",
        [&] { decoder_weights_.reload(options_.model.spec, decoder_tensors(), *device_, pool_); });
  timed(times_, "pack transposed",
        [&] { transposed_.update(rounded_.data(), layout_, kernels_, decoder_.execution); });
}

// From [row][position][layer][chosen] to [layer][row][position][chosen].
void Trainer::Replica::give_experts(std::span<const PackedRow> rows) {
  given_experts_.clear();
  if (std::ranges::all_of(rows, [](const PackedRow& row) { return row.routes.empty(); })) return;
  const DecoderSpec& spec = options_.model.spec;
  const int columns = routed_columns(spec);
  for (const PackedRow& row : rows) check_routes(row, spec, options_.context);
  int first = 0;
  for (const LayerSpec& layer : spec.layer_specs) {
    const int chosen = layer.experts ? layer.experts->routing.chosen : 0;
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
  for (size_t t = 0; t < batch_.rows.size(); ++t) {
    const bool has = has_row_after(batch_, t, 1);
    mtp_->wanted.targets.push_back(has ? wanted_.targets[t + 1] : 0);
    mtp_->wanted.weights.push_back(has ? wanted_.weights[t + 1] : 0.0f);
    mtp_->batch.rows[t].token = wanted_.targets[t];
  }
}

// Logits and what the log-probabilities need, of all positions.
void Trainer::Replica::run_forward(std::span<const PackedRow> rows, Tape* tape) {
  build_batch(rows);
  io_.tape = tape;
  io_.times = times_;
  io_.given_experts = given_experts_;
  forward(decoder_, batch_, kv_, forward_workspace_, solo_group(), io_);
  timed(times_, "log-sum-exp",
        [&] { scores_.compute(decoder_, io_.logits.data(), std::ssize(batch_.rows)); });
  note_failure(scores_);
}

// Logits of the module, behind run_forward with a tape.
void Trainer::Replica::run_mtp() {
  const int64_t size = std::ssize(batch_.rows) * options_.model.spec.hidden;
  io_.hidden = {tape_.output(), static_cast<size_t>(size)};
  forward(decoder_, mtp_->batch, kv_, forward_workspace_, solo_group(), io_);
  exit_scores_.compute(decoder_, io_.logits.data(), std::ssize(batch_.rows));
  note_failure(exit_scores_);
}

void Trainer::Replica::note_failure(const Scores& scores) {
  for (size_t t = 0; t < batch_.rows.size() && failure_.empty(); ++t)
    if (scores.has_nan[t] || io_.non_finite[t])
      failure_ = fmt::format("the forward of position {} of row {}", t % options_.context,
                             t / options_.context);
}

// Sum of weight * -log-probability of each row, in f64.
void Trainer::Replica::record_losses(const Wanted& wanted, const Scores& scores,
                                     double* losses) const {
  const size_t context = static_cast<size_t>(options_.context);
  for (size_t t = 0; t < wanted.targets.size(); ++t) {
    if (t % context == 0) losses[t / context] = 0;
    if (wanted.weights[t] != 0)
      losses[t / context] -=
          double{wanted.weights[t]} * scores.log_probability(t, wanted.targets[t]);
  }
}

// The gradient of `weight` times the mean loss over a step whose weights add up to `total`.
Activation Trainer::Replica::loss_gradient(const Scores& scores, const Wanted& wanted, double total,
                                           float weight, const Scores* teacher,
                                           DeviceArray<bf16_t>& memory) {
  std::vector<float> weights;
  for (const float w : wanted.weights)
    weights.push_back(w == 0 ? 0.0f : static_cast<float>(w / total) * weight);
  const Activation out{memory.data(), DType::bf16, activation_stride(scores.vocab)};
  LossParams params{.logits = scores.logits,
                    .rows = scores.rows,
                    .stride = scores.vocab,
                    .vocab = scores.vocab,
                    .max = scores.max.data(),
                    .log_sum = scores.log_sum.data(),
                    .targets = wanted.targets.data(),
                    .weights = weights.data(),
                    .teacher = nullptr,
                    .out = out};
  if (teacher) {
    params.teacher = teacher->logits;
    params.teacher_max = teacher->max.data();
    params.teacher_log_sum = teacher->log_sum.data();
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
  const Activation normed{exit.normed.data(), DType::bf16, activation_stride(spec.hidden)};
  run("exits", decoder_.kernels.rms_norm,
      RmsNormParams{.x = tape_.layer(loss.layers).input,
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
  timed(times_, "exits", [&] { exit_scores_.compute(decoder_, exit_logits_.data(), rows); });
  note_failure(exit_scores_);
  return {.layers = loss.layers,
          .normed = normed,
          .d_logits = loss_gradient(exit_scores_, wanted_, total, loss.weight, teacher_scores(),
                                    exit.d_logits),
          .head = gradients + exit.head_offset,
          .final_norm = gradients + exit.norm_offset};
}

// The recipe's weight of balance, of one packed row and layer.
double Trainer::Replica::balance_weight(size_t rows_of_step) const {
  const auto has_experts = [](const LayerSpec& layer) { return layer.experts.has_value(); };
  const auto layers = std::ranges::count_if(options_.model.spec.layer_specs, has_experts);
  return layers == 0 ? 0 : options_.balance / (static_cast<double>(rows_of_step) * layers);
}

// Forward and backward of some rows, the first of which is row `first` of the step.
void Trainer::Replica::compute_batch(std::span<const PackedRow> rows, size_t first,
                                     const Totals& totals, float* gradients, bool begins) {
  const size_t rows_of_step = losses_.size() / static_cast<size_t>(loss_count());
  run_forward(rows, &tape_);
  double* losses = &losses_[first];  // of one loss after the other
  record_losses(wanted_, scores_, losses);
  if (teacher_) timed(times_, "teacher", [&] { note_failure(teacher_->run(batch_)); });
  BackwardIo io{
      .tape = &tape_,
      .d_logits = loss_gradient(scores_, wanted_, totals.model, 1.0f, teacher_scores(), d_logits_),
      .gradients = gradients,
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
           .d_logits = loss_gradient(exit_scores_, mtp_->wanted, totals.mtp, options_.mtp_weight,
                                     nullptr, mtp_->d_logits),
           .head = gradients + mtp_->head_offset,
           .embedding = gradients + mtp_->embedding_offset};
    io.mtp = &mtp;
  }
  backward(decoder_, transposed_, kernels_, layout_, batch_, kv_, backward_workspace_, io);
}

// Where the chains of a tensor's uses meet: gradient = gradient + the chain at `from`.
void Trainer::Replica::add_to(float* gradients, TensorRole role, int64_t from) {
  const auto slot =
      std::ranges::find(layout_.slots(), layout_.offset(role), &ParameterLayout::Slot::offset);
  run("add gradients", kernels_.add_gradient,
      AddGradientParams{
          .x = gradients + from, .count = slot->count, .y = gradients + slot->offset});
}

// Gradients that are added up in memory begin as zeros; those of products begin by themselves.
void Trainer::Replica::clear_sums(float* gradients) {
  const auto clear = [&](int64_t offset, int64_t count) {
    pool_.run([&](Part part) {
      const auto [begin, end] = part.of(count, 1024);
      std::fill(gradients + offset + begin, gradients + offset + end, 0.0f);
    });
  };
  for (const ParameterLayout::Slot& slot : layout_.slots())
    if (slot.tensor.shape.size() != 2 || slot.tensor.role == TensorRole::embedding)
      clear(slot.offset, slot.count);
  const DecoderSpec& spec = options_.model.spec;
  for (const Exit& exit : exits_) clear(exit.norm_offset, spec.hidden);
  if (mtp_) clear(mtp_->embedding_offset, int64_t{spec.vocab} * spec.hidden);
}

// The gradient of one group's rows in the next free buffer.
void Trainer::Replica::compute_group(int group, std::span<const PackedRow> rows,
                                     const Totals& totals) {
  float* gradients = gradients_[waiting_].data();
  timed(times_, "clear gradients", [&] { clear_sums(gradients); });
  const size_t count = rows.size() / static_cast<size_t>(options_.groups);
  for (size_t row = 0; row < count; row += static_cast<size_t>(options_.batch_rows)) {
    const size_t first = group * count + row;
    const auto batch =
        rows.subspan(first, std::min(static_cast<size_t>(options_.batch_rows), count - row));
    compute_batch(batch, first, totals, gradients, row == 0);
  }
  const bool tied = options_.model.spec.tied_head;
  const TensorRole head = tied ? TensorRole::embedding : TensorRole::head;
  if (tied) add_to(gradients, head, layout_.offset(TensorRole::head));
  for (const Exit& exit : exits_) {
    add_to(gradients, head, exit.head_offset);
    add_to(gradients, TensorRole::final_norm, exit.norm_offset);
  }
  if (!mtp_) return;
  add_to(gradients, head, mtp_->head_offset);
  add_to(gradients, TensorRole::embedding, mtp_->embedding_offset);
}

// (g0 + g1) + (g2 + g3) ...: an odd one meets the tree to its left.
void Trainer::Replica::merge_group(int group) {
  for (int odd = group; odd & 1; odd >>= 1) {
    --waiting_;
    run("add gradients", kernels_.add_gradient,
        AddGradientParams{.x = gradients_[waiting_ + 1].data(),
                          .count = layout_.size(),
                          .y = gradients_[waiting_].data()});
  }
  ++waiting_;
}

// Step number `step` by the gradients of all ranks: each updates the tensors that it owns.
void Trainer::Replica::optimize(int64_t step, double norm) {
  timed(times_, "optimizer", [&] {
    optimizer_.update(step, norm,
                      {.gradients = gradients_[0].data(),
                       .master = master_.data(),
                       .first = first_.data(),
                       .second = second_.data(),
                       .rounded = rounded_.data(),
                       .begin = owned_.begin,
                       .end = owned_.end},
                      decoder_.execution);
  });
  if (group_.size() > 1)
    timed(times_, "exchange weights", [&] {
      exchange_owned(group_, shares_, rounded_.data() + owned_.begin, rounded_.data(),
                     decoder_.execution);
    });
  publish();
}

Trainer::Replica::Result Trainer::Replica::step(int64_t step, std::span<const PackedRow> rows,
                                                double divisor, OperationTimes* times) {
  times_ = times;
  Totals totals;
  for (const PackedRow& row : rows)
    for (size_t i = 0, next = 0; i < row.tokens.size(); ++i) {
      if (next < row.begins.size() && static_cast<size_t>(row.begins[next]) == i) ++next;
      totals.model += row.weights[i];
      if (has_second(row, i, next)) totals.mtp += row.weights[i + 1];
    }
  if (divisor != 0) totals = {divisor, divisor};
  const int groups = options_.groups / options_.ranks;
  losses_.assign(static_cast<size_t>(loss_count()) * rows.size(), 0.0);
  failure_.clear();
  waiting_ = 0;
  for (int i = 0; i < groups; ++i) {
    compute_group(group_.rank() * groups + i, rows, totals);
    merge_group(i);
  }
  group_.tree_all_reduce(gradients_[0].data(), layout_.size(), decoder_.execution);
  Result result;
  std::vector<double> losses(rows.size());
  const size_t mine = rows.size() / static_cast<size_t>(options_.ranks);
  for (size_t i = 0; i < static_cast<size_t>(loss_count()); ++i) {
    group_.all_gather(losses_.data() + i * rows.size() + mine * group_.rank(),
                      static_cast<int64_t>(mine * sizeof(double)), losses.data(),
                      decoder_.execution);
    double sum = 0;
    for (const double loss : losses) sum += loss;
    const double total = i <= exits_.size() ? totals.model : totals.mtp;
    result.losses.push_back(total != 0 ? sum / total : sum);
  }
  timed(times_, "gradient norm", [&] {
    result.gradient_norm =
        optimizer_.norm(gradients_[0].data(), decoder_.execution, result.failure);
  });
  // All ranks go on or none does: the gradients are the same on all, a forward's failure is not.
  const int failed = !failure_.empty();
  std::vector<int> all_failed(static_cast<size_t>(options_.ranks));
  group_.all_gather(&failed, sizeof failed, all_failed.data(), decoder_.execution);
  if (std::ranges::count(all_failed, 1)) result.failure = failed ? failure_ : "another rank";
  if (!result.failure.empty()) return result;
  optimize(step, result.gradient_norm);
  return result;
}

void Trainer::Replica::log_probabilities(std::span<const PackedRow> rows, float* out,
                                         float* entropies) {
  failure_.clear();
  run_forward(rows, nullptr);
  if (!failure_.empty()) fail("{} is not finite", failure_);
  for (size_t t = 0; t < batch_.rows.size(); ++t)
    out[t] = scores_.log_probability(t, wanted_.targets[t]);
  if (!entropies) return;
  pool_.run([&](Part part) {
    for (size_t t = part.index; t < batch_.rows.size(); t += part.count)
      if (wanted_.weights[t] != 0) entropies[t] = scores_.entropy(t);
  });
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
      const int64_t chosen = layer.experts ? layer.experts->routing.chosen : 0;
      to.insert(to.end(), layer_ids + t * chosen, layer_ids + (t + 1) * chosen);
      layer_ids += count * chosen;
    }
  }
}

void Trainer::Replica::score_mtp(std::span<const PackedRow> rows, MtpScore& score) {
  run_forward(rows, &tape_);
  run_mtp();
  const Wanted& wanted = mtp_->wanted;
  for (size_t t = 0; t < wanted.targets.size(); ++t) {
    if (wanted.weights[t] == 0) continue;
    score.loss -= exit_scores_.log_probability(t, wanted.targets[t]);
    score.agreed += exit_scores_.argmax[t] == scores_.argmax[t + 1];
    ++score.count;
  }
}

}  // namespace invar
