#include "train/replica.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.h"
#include "model/families/trained_source.h"
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

// Those that a rank owns, where they lie there. Matrices decay.
std::vector<AdamW::Tensor> optimized(const ParameterLayout& layout, const OwnedTensors& owned,
                                     int rank) {
  std::vector<AdamW::Tensor> tensors;
  for (size_t i = 0; i < layout.slots().size(); ++i) {
    const ParameterLayout::Slot& slot = layout.slots()[i];
    if (owned.owner(i) == rank)
      tensors.push_back(
          {slot.tensor.name, owned.place(i), slot.count, slot.tensor.shape.size() == 2});
  }
  return tensors;
}

DeviceArray<float> floats(Device& device, int64_t count, const char* what) {
  return {device, static_cast<size_t>(count), what};
}

}  // namespace

Trainer::Replica::Replica(const TrainerOptions& options, const ParameterLayout& layout,
                          const OwnedTensors& owned, Group& group,
                          std::shared_ptr<ModelWeights> frozen)
    : options_(options),
      layout_(layout),
      group_(group),
      on_(open_training_device(options.device, options.instruction_set, options.order, group.rank(),
                               options.ranks)),
      device_(on_.device),
      pool_(options.threads, options.group ? 0 : group.rank() * options.threads),
      kernels_(on_.training),
      optimizer_(options.optimizer, kernels_,
                 optimized(layout, owned, owned.ranks() > 1 ? group.rank() : 0)),
      owned_(owned),
      master_(floats(*device_, own_count(), "the master weights")),
      first_(floats(*device_, own_count(), "the optimizer's state")),
      second_(floats(*device_, own_count(), "the optimizer's state")),
      rounded_(*device_, static_cast<size_t>(own_count()), "the rounded weights"),
      model_weights_(frozen ? std::move(frozen)
                            : std::make_shared<ModelWeights>(options, on_, is_sharded())),
      decoder_weights_(model_weights_->forward),
      transposed_(model_weights_->backward),
      decoder_(options.model.spec, {.order = options.order}, on_.kernels, decoder_weights_,
               *device_, device_->is_host() ? &pool_ : nullptr),
      kv_(*device_, states_of(options.model.spec, {}, {0, options.model.spec.all_layers()}),
          packed_store(options.model.spec, options.batch_rows, options.context, on_.kernels.cache)),
      forward_workspace_(decoder_, options.batch_rows * options.context,
                         options.batch_rows * options.context, 0, false),
      tape_(decoder_, kernels_, options.batch_rows * options.context, options.recompute),
      backward_workspace_(decoder_, kernels_, options.batch_rows * options.context, options.context,
                          static_cast<int>(options.lora.settings.rank)),
      scores_(*device_, options.batch_rows * options.context),
      exit_scores_(*device_, options.exits.empty() && options.model.spec.mtp_layers == 0
                                 ? 0
                                 : options.batch_rows * options.context) {
  const DecoderSpec& spec = options.model.spec;
  const int64_t positions = int64_t{options.batch_rows} * options.context;
  const auto bf16s = [&](int64_t width, const char* what) {
    return DeviceArray<bf16_t>(*device_, static_cast<size_t>(positions * activation_stride(width)),
                               what);
  };
  d_logits_ = bf16s(spec.vocab, "the gradient of the logits");
  row_weights_ = floats(*device_, positions, "weights of rows");
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
    const int64_t left = options.mtp_own_every > 0 ? positions * spec.hidden : 0;
    mtp_.reset(new Mtp{.d_logits = bf16s(spec.vocab, "the gradient of the logits"),
                       .head_offset = gradient_size_,
                       .embedding_offset = gradient_size_ + vocabulary,
                       .norm_offset = gradient_size_ + 2 * vocabulary,
                       .left = floats(*device_, left, "what a module leaves"),
                       .own_rows = {}});
    gradient_size_ += 2 * vocabulary + round_up(spec.hidden, kPanelWidth);
  }
  if (!exits_.empty()) exit_logits_ = floats(*device_, positions * spec.vocab, "an exit's logits");
  if (options.teacher.weights)
    teacher_ = std::make_unique<TeacherOfRows>(options, on_.kernels, *device_, pool_);
  if (changes_rows(options.sampled))
    sampled_.emplace(*device_, options.sampled, positions, spec.vocab);
  if (options.lora.is_on()) {
    adapter_ = std::make_unique<TrainedAdapter>(options.lora, layout, decoder_, rounded_.data(),
                                                forward_workspace_);
    gradient_size_ += adapter_->gradients().later_size();
  }
  // Groups meet two and two: at most one buffer waits on each level of the tree.
  const int levels = std::bit_width(static_cast<unsigned>(options.groups / options.ranks));
  for (int i = 0; i < levels; ++i)
    gradients_.push_back(
        floats(*device_, is_sharded() ? own_count() : gradient_size_, "gradients"));
  if (is_sharded())
    gathered_ =
        std::make_unique<GatheredWeights>(group_, layout_, owned_, rounded_.data(),
                                          decoder_weights_, transposed_, kernels_, decoder_);
}

void Trainer::Replica::load(const Start& start, const TensorSource& weights) {
  const DecoderSpec& spec = options_.model.spec;
  std::vector<float> master, first, second;  // of one tensor
  std::vector<bf16_t> rounded;
  for (size_t i = 0; i < layout_.slots().size(); ++i) {
    if (owned_.owner(i) != own_rank()) continue;
    const ParameterLayout::Slot& slot = layout_.slots()[i];
    const auto at = owned_.place(i), count = slot.count;
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    for (auto* array : {&master, &first, &second}) array->assign(static_cast<size_t>(count), 0);
    start.read(i, {master.data(), first.data(), second.data()});
    device_->upload(&master_.data()[at], master.data(), bytes);
    device_->upload(&first_.data()[at], first.data(), bytes);
    device_->upload(&second_.data()[at], second.data(), bytes);
    rounded.resize(static_cast<size_t>(count));
    std::ranges::transform(master, rounded.begin(), f32_to_bf16);
    device_->upload(&rounded_.data()[at], rounded.data(), bytes / 2);
  }
  weights_ = &weights;
  if (!adapter_) decoders_own_ = decoder_form(spec, weights);
  if (decoders_own_) weights_ = decoders_own_.get();
  publish();
}

// The rounded weights become those of the forward and the backward.
void Trainer::Replica::publish() {
  if (gathered_) return gathered_->forget();
  if (adapter_)
    return timed(times_, "pack adapter", [&] { adapter_->publish(decoder_, kernels_); });
  timed(times_, "pack weights", [&] { pack_weights(); });
  decoder_.embedding = decoder_weights_.embedding();
  timed(times_, "pack transposed",
        [&] { transposed_.update(rounded_.data(), layout_, kernels_, decoder_.execution); });
}

void Trainer::Replica::pack_weights() {
  const DecoderSpec& spec = options_.model.spec;
  if (packing_) return packing_->pack(rounded_.data(), decoder_weights_, decoder_.execution);
  decoder_weights_.reload(spec, *weights_, *device_, pool_);
  if (can_pack_on_device(on_, spec)) packing_.emplace(on_, spec, layout_);
}

// Where the chains of a tensor's uses meet: gradient = gradient + the chain at `from`.
void Trainer::Replica::add_to(float* gradients, TensorRole role, int64_t from) {
  const auto slot =
      std::ranges::find(layout_.slots(), layout_.offset(role), &ParameterLayout::Slot::offset);
  run("add gradients", kernels_.add_gradient,
      AddGradientParams{.x = gradients + places_->place(from),
                        .count = slot->count,
                        .y = gradients + places_->place(slot->offset)});
}

// With several ranks, layers' gradients take turns in one place where a group is one batch, for
// then each is whole, and goes, when the next one begins.
void Trainer::Replica::place_gradients(bool in_turn) {
  in_turn &= is_sharded();
  if (places_ && places_->in_turn() == in_turn) return;
  places_.emplace(layout_, gradient_size_ - layout_.size(), in_turn);
  if (is_sharded()) {
    work_ = {};
    work_ = floats(*device_, places_->size(), "gradients");
  }
}

// Where the group that is being computed has its gradient.
float* Trainer::Replica::work() {
  return is_sharded() ? work_.data() : gradients_[waiting_].data();
}

// Gradients that are added up in memory begin as zeros; those of products begin by themselves.
void Trainer::Replica::clear_sums(float* gradients, const ParameterLayout::Unit& unit) {
  for (size_t i = unit.first; i < unit.last; ++i) {
    const ParameterLayout::Slot& slot = layout_.slots()[i];
    const bool is_sum = slot.tensor.shape.size() != 2 || slot.tensor.role == TensorRole::embedding;
    if (!is_sum) continue;
    clear(gradients + places_->place(slot.offset), slot.count);
  }
}

void Trainer::Replica::clear(float* from, int64_t count) {
  if (!device_->is_host())
    return decoder_.execution.stream->clear(from, static_cast<size_t>(count) * sizeof(float));
  pool_.run([&](Part part) {
    const auto [begin, end] = part.of(count, 1024);
    std::fill(from + begin, from + end, 0.0f);
  });
}

void Trainer::Replica::clear_sums(float* gradients) {
  for (const ParameterLayout::Unit& unit : layout_.units())
    if (unit.layer < 0 || !places_->in_turn()) clear_sums(gradients, unit);
  const DecoderSpec& spec = options_.model.spec;
  for (const Exit& exit : exits_) clear(gradients + places_->place(exit.norm_offset), spec.hidden);
  if (!mtp_) return;
  clear(gradients + places_->place(mtp_->embedding_offset), int64_t{spec.vocab} * spec.hidden);
  clear(gradients + places_->place(mtp_->norm_offset), spec.hidden);
}

// The gradient of one group of every rank's: each keeps what it owns of it, in the next free
// buffer.
void Trainer::Replica::keep_own(float* gradients, const ParameterLayout::Unit& unit) {
  constexpr int64_t kPiece = 1 << 18;  // elements
  float* all = gradients + places_->place(unit.begin);
  timed(times_, "exchange gradients", [&] {
    for (int64_t at = 0; at < unit.count(); at += kPiece)
      group_.tree_all_reduce(all + at, std::min(kPiece, unit.count() - at), decoder_.execution);
    for (size_t i = unit.first; i < unit.last; ++i)
      if (owned_.owner(i) == group_.rank())
        team::copy(decoder_.execution, gradients_[waiting_].data() + owned_.place(i),
                   all + layout_.slots()[i].offset - unit.begin,
                   layout_.slots()[i].count * static_cast<int64_t>(sizeof(float)));
  });
}

// The gradient of one group's rows, or of one of every rank's, in the next free buffer.
void Trainer::Replica::compute_group(int group, std::span<const PackedRow> rows,
                                     const Totals& totals) {
  float* gradients = work();
  timed(times_, "clear gradients", [&] { clear_sums(gradients); });
  const size_t count = rows.size() / static_cast<size_t>(options_.groups);
  for (size_t row = 0; row < count; row += static_cast<size_t>(options_.batch_rows)) {
    const size_t first = group * count + row;
    const size_t size = std::min(static_cast<size_t>(options_.batch_rows), count - row);
    compute_batch(rows.subspan(first, size), first, totals, gradients, row == 0,
                  row + size == count);
  }
  if (adapter_) return add_later_uses(gradients);
  const bool tied = options_.model.spec.tied_head;
  const TensorRole head = tied ? TensorRole::embedding : TensorRole::head;
  if (tied) add_to(gradients, head, layout_.offset(TensorRole::head));
  for (const Exit& exit : exits_) {
    add_to(gradients, head, exit.head_offset);
    add_to(gradients, TensorRole::final_norm, exit.norm_offset);
  }
  if (mtp_) {
    add_to(gradients, head, mtp_->head_offset);
    add_to(gradients, TensorRole::embedding, mtp_->embedding_offset);
    if (tape_.norms_module_input()) add_to(gradients, TensorRole::final_norm, mtp_->norm_offset);
  }
  if (!is_sharded()) return;
  for (const ParameterLayout::Unit& unit : layout_.units())
    if (unit.layer < 0) keep_own(gradients, unit);
}

// An adapter's A that stands beside several tensors has a chain of each.
void Trainer::Replica::add_later_uses(float* gradients) {
  for (const auto& [chain, a, count] : adapter_->gradients().later_uses())
    run("add gradients", kernels_.add_gradient,
        AddGradientParams{.x = gradients + places_->place(chain),
                          .count = count,
                          .y = gradients + places_->place(a)});
}

// The gradient of one group of every rank's, of ranks that keep all of it.
void Trainer::Replica::add_up_ranks() {
  constexpr int64_t kPiece = 1 << 26;  // elements
  const Execution& on = decoder_.execution;
  timed(times_, "exchange gradients", [&] {
    group_.begin_step(on);
    for (int64_t at = 0; at < own_count(); at += kPiece)
      group_.tree_all_reduce(gradients_[waiting_].data() + at, std::min(kPiece, own_count() - at),
                             on);
    group_.end_step(on);
  });
}

// (g0 + g1) + (g2 + g3) ...: an odd one meets the tree to its left.
void Trainer::Replica::merge_group(int group) {
  for (int odd = group; odd & 1; odd >>= 1) {
    --waiting_;
    run("add gradients", kernels_.add_gradient,
        AddGradientParams{.x = gradients_[waiting_ + 1].data(),
                          .count = own_count(),
                          .y = gradients_[waiting_].data()});
  }
  ++waiting_;
}

// Step number `step`, of the tensors that this rank owns.
void Trainer::Replica::optimize(int64_t step, double norm) {
  timed(times_, "optimizer", [&] {
    optimizer_.update(step, norm,
                      {.gradients = gradients_[0].data(),
                       .master = master_.data(),
                       .first = first_.data(),
                       .second = second_.data(),
                       .rounded = rounded_.data()},
                      decoder_.execution);
  });
  publish();
}

// The norm over all tensors, by the sums of their owners.
double Trainer::Replica::gradient_norm(std::string& failure) {
  const auto ranks = static_cast<size_t>(owned_.ranks());
  std::vector<size_t> by_name(layout_.slots().size());
  std::iota(by_name.begin(), by_name.end(), size_t{0});
  std::ranges::sort(by_name, {}, [&](size_t i) { return layout_.slots()[i].tensor.name; });
  std::vector<float> own = optimizer_.squares(gradients_[0].data(), decoder_.execution);
  own.resize(by_name.size());
  std::vector<float> all(own.size() * ranks);
  if (is_sharded())
    group_.all_gather(own.data(), static_cast<int64_t>(own.size() * sizeof(float)), all.data(),
                      decoder_.execution);
  else
    all = own;
  std::vector<size_t> next(ranks);
  std::vector<SquaredTensor> tensors;
  for (const size_t i : by_name) {
    const auto owner = static_cast<size_t>(owned_.owner(i));
    tensors.push_back({layout_.slots()[i].tensor.name, all[owner * own.size() + next[owner]++]});
  }
  return invar::gradient_norm(tensors, failure);
}

// Gathers the losses of every rank's groups, in the order of the step's rows.
void Trainer::Replica::gather_losses(std::vector<double>& losses) {
  const size_t rows = losses_.size() / static_cast<size_t>(loss_count());
  const size_t count = rows / static_cast<size_t>(options_.groups);
  const size_t ranks = static_cast<size_t>(options_.ranks);
  for (size_t first = 0; first < losses_.size(); first += count * ranks)
    group_.all_gather(&losses_[first + count * static_cast<size_t>(group_.rank())],
                      static_cast<int64_t>(count * sizeof(double)), &losses[first], on_host());
}

Trainer::Replica::Result Trainer::Replica::step(int64_t step, std::span<const PackedRow> rows,
                                                double divisor, OperationTimes* times) {
  times_ = times;
  if (gathered_) gathered_->set_times(times);
  Totals totals;
  for (const PackedRow& row : rows)
    for (size_t i = 0, next = 0; i < row.tokens.size(); ++i) {
      if (next < row.begins.size() && static_cast<size_t>(row.begins[next]) == i) ++next;
      totals.model += row.weights[i];
      if (has_second(row, i, next)) totals.mtp += row.weights[i + 1];
    }
  if (divisor != 0) totals = {divisor, divisor};
  losses_.assign(static_cast<size_t>(loss_count()) * rows.size(), 0.0);
  failure_.clear();
  waiting_ = 0;
  place_gradients(rows.size() / static_cast<size_t>(options_.groups) <=
                  static_cast<size_t>(options_.batch_rows));
  // Groups that the ranks compute at the same time are neighbours in the tree, so that they meet
  // at once and a rank needs to keep its own tensors' part alone.
  for (int i = 0; i < options_.groups / options_.ranks; ++i) {
    compute_group(i * options_.ranks + group_.rank(), rows, totals);
    if (!is_sharded() && options_.ranks > 1) add_up_ranks();
    merge_group(i);
  }
  Result result;
  std::vector<double> losses(losses_.size());
  gather_losses(losses);
  for (size_t i = 0; i < static_cast<size_t>(loss_count()); ++i) {
    double sum = 0;
    for (const double loss : std::span(losses).subspan(i * rows.size(), rows.size())) sum += loss;
    const double total = i <= exits_.size() ? totals.model : totals.mtp;
    result.losses.push_back(total != 0 ? sum / total : sum);
  }
  timed(times_, "gradient norm", [&] { result.gradient_norm = gradient_norm(result.failure); });
  // All ranks go on or none does: the gradients are the same on all, a forward's failure is not.
  const int failed = !failure_.empty();
  std::vector<int> all_failed(static_cast<size_t>(options_.ranks));
  group_.all_gather(&failed, sizeof failed, all_failed.data(), on_host());
  if (std::ranges::count(all_failed, 1)) result.failure = failed ? failure_ : "another rank";
  if (!result.failure.empty()) return result;
  optimize(step, result.gradient_norm);
  return result;
}

}  // namespace invar
