#include "train/trainer.h"

#include <cmath>
#include <thread>

#include "base/error.h"
#include "base/timer.h"
#include "model/families/family_source.h"
#include "model/parts/layer_part.h"
#include "train/replica.h"

namespace invar {

namespace {

// Norms are 1, biases 0, matrices normal: small enough that every layer begins as a small change of
// the residual stream, the outputs that are added to it smaller still by the number of layers.
TrainingState random_state(const DecoderSpec& spec, const ParameterLayout& layout, uint64_t seed) {
  TrainingState state;
  for (auto* array : {&state.master, &state.first, &state.second}) array->resize(layout.size());
  const bool has_offsets = stores_offsets(spec);  // norms of 1 are stored as 0
  uint32_t number = 0;
  for (const ParameterLayout::Slot& slot : layout.slots()) {
    const bool is_norm = slot.tensor.name.find("norm") != std::string::npos && !has_offsets;
    const bool is_embedding = slot.tensor.role == TensorRole::embedding;
    const bool is_added = slot.tensor.role == TensorRole::o ||
                          slot.tensor.role == TensorRole::down ||
                          slot.tensor.role == TensorRole::expert_down;
    double deviation = 0;
    if (slot.tensor.shape.size() == 2)
      deviation = is_embedding ? 0.02 : 0.55 / __builtin_sqrt(double(slot.tensor.shape[1]));
    if (is_added) deviation /= __builtin_sqrt(2.0 * spec.layers);
    for (int64_t i = 0; i < slot.count; ++i)
      state.master[slot.offset + i] =
          deviation > 0 ? static_cast<float>(deviation * normal_weight(seed, number, i)) : is_norm;
    ++number;
  }
  return state;
}

bool is_power_of_two(int x) {
  return x > 0 && (x & (x - 1)) == 0;
}

}  // namespace

TrainingState starting_state(const DecoderSpec& spec, const TensorSource& weights) {
  const ParameterLayout layout(spec);
  TrainingState state;
  for (auto* array : {&state.master, &state.first, &state.second}) array->resize(layout.size());
  for (const ParameterLayout::Slot& slot : layout.slots()) {
    const std::string& name = slot.tensor.name;
    if (const DType type = weights.info(name).dtype; storage_of(type).has_blocks())
      fail("{}: expected weights of bf16, f16 or f32 to train, found {}", weights.where(name),
           name_of(type));
    weights.read(name, 0, slot.count, DType::f32, &state.master[slot.offset]);
  }
  return state;
}

std::string training_identity(const TrainerOptions& options) {
  return fmt::format("train-1/g{}", options.groups);
}

void Trainer::check_options() const {
  const TrainerOptions& o = options_;
  expect_trainable(o.model.spec);
  const auto require = [](bool good, const char* expected, int64_t found) {
    if (!good) fail_usage("expected {}, found {}", expected, found);
  };
  require(o.context >= 32 && o.context % 32 == 0, "a context of a multiple of 32", o.context);
  require(o.context <= o.model.spec.max_positions, "a context within the model's positions",
          o.context);
  require(is_power_of_two(o.groups), "a number of groups that is a power of two", o.groups);
  require(o.rows > 0 && o.rows % o.groups == 0, "rows that the groups share evenly", o.rows);
  require(o.batch_rows > 0, "at least 1 row in a batch", o.batch_rows);
  require(is_power_of_two(o.ranks) && o.ranks <= o.groups,
          "a number of ranks that is a power of two and at most the groups", o.ranks);
  int before = 0;
  for (const ExitLoss& exit : o.exits) {
    require(exit.layers > before && exit.layers < o.model.spec.layers,
            "exits after an ascending number of layers, fewer than the model has", exit.layers);
    before = exit.layers;
  }
  if (o.teacher.weights)
    require(o.teacher.model.spec.vocab == o.model.spec.vocab &&
                o.teacher.model.spec.max_positions >= o.context,
            "a teacher with the same vocabulary and enough positions", o.teacher.model.spec.vocab);
  require(o.optimizer.steps > 0, "at least 1 step", o.optimizer.steps);
  require(o.optimizer.warmup >= 0 && o.optimizer.warmup < o.optimizer.steps,
          "fewer steps of warm-up than steps", o.optimizer.warmup);
}

Trainer::Trainer(const TrainerOptions& options, uint64_t seed)
    : options_(options), layout_(options.model.spec) {
  start(random_state(options.model.spec, layout_, seed));
}

Trainer::Trainer(const TrainerOptions& options, const TrainingState& state)
    : options_(options), layout_(options.model.spec) {
  for (const auto* array : {&state.master, &state.first, &state.second})
    if (std::ssize(*array) != layout_.size())
      fail("expected a training state of {} numbers, found {}", layout_.size(), array->size());
  start(state);
}

Trainer::~Trainer() = default;

void Trainer::start(const TrainingState& state) {
  check_options();
  step_ = state.step;
  const int rows_of_group = options_.rows / options_.groups;
  options_.batch_rows = std::min(options_.batch_rows, rows_of_group);
  if (options_.group) {
    replicas_.push_back(std::make_unique<Replica>(options_, layout_, *options_.group));
    replicas_.back()->load(state);
    return;
  }
  if (options_.ranks > 1) groups_ = make_inproc_groups(options_.ranks);
  for (int r = 0; r < options_.ranks; ++r) {
    Group& group = options_.ranks > 1 ? *groups_[r] : solo_group();
    replicas_.push_back(std::make_unique<Replica>(options_, layout_, group));
    replicas_.back()->load(state);
  }
}

StepReport Trainer::step(std::span<const PackedRow> rows, double divisor, OperationTimes* times) {
  if (rows.empty() || std::ssize(rows) % options_.groups != 0)
    fail("expected rows that {} groups share evenly, found {}", options_.groups, rows.size());
  Timer timer;
  const int64_t step = step_ + 1;
  std::vector<Replica::Result> results(replicas_.size());
  {
    std::vector<std::jthread> others;
    for (size_t r = 1; r < replicas_.size(); ++r)
      others.emplace_back(
          [&, r] { results[r] = replicas_[r]->step(step, rows, divisor, nullptr); });
    results[0] = replicas_[0]->step(step, rows, divisor, times);
  }
  for (const Replica::Result& result : results)
    if (!result.failure.empty() && (options_.group || result.failure != "another rank"))
      fail("step {}: {} is not finite", step, result.failure);
  step_ = step;
  return {.step = step,
          .loss = results[0].losses[0],
          .exit_losses = {results[0].losses.begin() + 1,
                          results[0].losses.begin() + 1 + std::ssize(options_.exits)},
          .mtp_loss = options_.model.spec.mtp_layers > 0 ? results[0].losses.back() : 0,
          .gradient_norm = results[0].gradient_norm,
          .rate = learning_rate(options_.optimizer, step),
          .tokens = std::ssize(rows) * options_.context,
          .seconds = timer.seconds()};
}

std::vector<float> Trainer::log_probabilities(std::span<const PackedRow> rows,
                                              std::vector<float>* entropies) {
  const size_t context = static_cast<size_t>(options_.context);
  const size_t most = static_cast<size_t>(options_.batch_rows);
  std::vector<float> result(rows.size() * context);
  if (entropies) entropies->assign(result.size(), 0.0f);
  for (size_t i = 0; i < rows.size(); i += most)
    replicas_[0]->log_probabilities(rows.subspan(i, std::min(most, rows.size() - i)),
                                    &result[i * context],
                                    entropies ? &(*entropies)[i * context] : nullptr);
  return result;
}

std::vector<int32_t> Trainer::routed_experts(std::span<const PackedRow> rows) {
  const size_t most = static_cast<size_t>(options_.batch_rows);
  std::vector<int32_t> all;
  for (size_t i = 0; i < rows.size(); i += most)
    replicas_[0]->append_routed_experts(rows.subspan(i, std::min(most, rows.size() - i)), all);
  return all;
}

MtpScore Trainer::score_mtp(std::span<const PackedRow> rows) {
  const size_t most = static_cast<size_t>(options_.batch_rows);
  MtpScore score;
  for (size_t i = 0; i < rows.size(); i += most)
    replicas_[0]->score_mtp(rows.subspan(i, std::min(most, rows.size() - i)), score);
  return score;
}

const TensorSource& Trainer::weights() const {
  return replicas_[0]->weights();
}

void Trainer::copy_state(TrainingState& state) const {
  state.step = step_;
  for (auto* array : {&state.master, &state.first, &state.second})
    array->resize(static_cast<size_t>(layout_.size()));
  if (options_.group) return replicas_[0]->gather_state(&state);
  for (const auto& replica : replicas_) replica->copy_state(state);
}

void Trainer::send_state() const {
  if (options_.group) replicas_[0]->gather_state(nullptr);
}

}  // namespace invar
