#include "train/trainer.h"

#include <cmath>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "base/timer.h"
#include "collectives/peer_group.h"
#include "model/families/trained_source.h"
#include "model/parts/part.h"
#include "model/taps.h"
#include "train/model_weights.h"
#include "train/replica.h"

namespace invar {

namespace {

// Seconds that a GPU waits for a rank whose rows take longer, or that reads them.
constexpr double kLongestWait = 600;

bool is_power_of_two(int x) {
  return x > 0 && (x & (x - 1)) == 0;
}

// How the elements of a tensor begin.
struct Beginning {
  double mean = 0, deviation = 0;
};

// Heads with a state begin so that they remember some tens of positions, each a little longer or
// shorter; short convolutions begin as rows of a matrix do.
std::optional<Beginning> beginning_of_state(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  switch (tensor.role) {
    case conv_q:
    case conv_k:
    case conv_v:
    case conv_tap:
      return Beginning{0, 0.55 / __builtin_sqrt(double(taps_of(spec.layer(tensor.layer))))};
    case decay_bias:
      return Beginning{-4, 1};
    case decay_rate:
      return Beginning{1, 0.5};
    case skip:
      return Beginning{1, 0};
    default:
      return std::nullopt;
  }
}

// Norms are 1, biases 0, matrices normal: small enough that every layer begins as a small change of
// the residual stream, the outputs that are added to it smaller still by the number of layers.
Beginning beginning_of(const DecoderSpec& spec, const TensorSpec& tensor) {
  using enum TensorRole;
  if (const auto of_state = beginning_of_state(spec, tensor)) return *of_state;
  if (tensor.shape.size() != 2) {
    const bool is_norm = tensor.name.find("norm") != std::string::npos;
    return {is_norm && !is_stored_as_offset(spec, tensor) ? 1.0 : 0.0, 0};
  }
  double deviation =
      tensor.role == embedding ? 0.02 : 0.55 / __builtin_sqrt(double(tensor.shape[1]));
  switch (tensor.role) {
    case o:
    case conv_o:
    case recurrent_o:
    case down:
    case expert_down:
    case shared_down:
      return {0, deviation / __builtin_sqrt(2.0 * spec.layers)};
    default:
      return {0, deviation};
  }
}

}  // namespace

Trainer::Start Trainer::random_start(const DecoderSpec& spec, const ParameterLayout& layout,
                                     uint64_t seed, ThreadPool& pool) {
  return {.read = [&spec, &layout, &pool, seed](size_t number, const Start::Tensor& to) {
    const ParameterLayout::Slot& slot = layout.slots()[number];
    const Beginning begin = beginning_of(spec, slot.tensor);
    const auto tensor = static_cast<uint32_t>(number);
    pool.run([&](Part part) {
      const auto [first, end] = part.of(slot.count, 1024);
      for (int64_t i = first; i < end; ++i)
        to.master[i] =
            begin.deviation > 0
                ? static_cast<float>(begin.mean + begin.deviation * normal_weight(seed, tensor, i))
                : static_cast<float>(begin.mean);
    });
  }};
}

Trainer::Start Trainer::adapter_start(const ParameterLayout& layout, uint64_t seed) {
  return {.read = [&layout, seed](size_t number, const Start::Tensor& to) {
    first_numbers(layout.slots()[number], seed, static_cast<uint32_t>(number), to.master);
  }};
}

TrainingState starting_state(const DecoderSpec& spec, const TensorSource& stored) {
  const auto other = stores_otherwise(spec) ? trained_form(spec, stored) : nullptr;
  const TensorSource& weights = other ? *other : stored;
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
  const std::string identity = fmt::format("train-1/g{}", options.groups);
  return options.order == Order::portable ? identity : identity + "/hopper";
}

// Refuses what a GPU does not compute.
void Trainer::check_device_options() const {
  const TrainerOptions& o = options_;
  const auto refuse_where = [&](bool is_there, const char* what) {
    if (is_there) fail_usage("the trainer was asked for on {}, which has no {}", o.device, what);
  };
  refuse_where(o.group != nullptr, "data-parallel ranks in processes of their own");
  refuse_where(o.model.spec.head_dim > 256, "backward of heads of more than 256 elements");
  for (const LayerSpec& layer : o.model.spec.layer_specs)
    refuse_where(layer.attention() && layer.attention()->latent, "backward of latent attention");
}

// Refuses what is not done beside an adapter.
void Trainer::check_adapter_options() const {
  const TrainerOptions& o = options_;
  const auto refuse_where = [&](bool is_there, const char* what) {
    if (is_there) fail_usage("expected no {} beside [lora], found one", what);
  };
  if (o.device != "cpu")
    fail_usage("adapters are trained on the CPU alone, and the device is {}; use --device cpu",
               o.device);
  refuse_where(!o.exits.empty(), "exit");
  refuse_where(o.teacher.weights != nullptr, "teacher");
}

void Trainer::check_options() const {
  const TrainerOptions& o = options_;
  if (o.lora.is_on()) check_adapter_options();
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
  if (o.device != "cpu") check_device_options();
  if (changes_rows(o.sampled) &&
      (o.teacher.weights || !o.exits.empty() || o.model.spec.mtp_layers > 0))
    fail_usage("expected no teacher, exits or multi-token prediction beside a sampler's filters");
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
    : options_(options), layout_(trained_layout(options.model.spec, options.lora)) {
  if (options.lora.is_on()) {
    start(adapter_start(layout_, seed));
    return;
  }
  ThreadPool pool(options.threads);
  start(random_start(options_.model.spec, layout_, seed, pool));
}

Trainer::Trainer(const TrainerOptions& options, const TrainingState& state)
    : options_(options), layout_(trained_layout(options.model.spec, options.lora)) {
  for (const auto* array : {&state.master, &state.first, &state.second})
    if (std::ssize(*array) != layout_.size())
      fail("expected a training state of {} numbers, found {}", layout_.size(), array->size());
  start({.step = state.step, .read = [&](size_t number, const Start::Tensor& to) {
           const ParameterLayout::Slot& slot = layout_.slots()[number];
           std::copy_n(&state.master[slot.offset], slot.count, to.master);
           std::copy_n(&state.first[slot.offset], slot.count, to.first);
           std::copy_n(&state.second[slot.offset], slot.count, to.second);
         }});
}

Trainer::Trainer(const TrainerOptions& options, int64_t step, const TensorSource& state)
    : options_(options), layout_(trained_layout(options.model.spec, options.lora)) {
  start({.step = step, .read = [&](size_t number, const Start::Tensor& to) {
           const auto [offset, count] =
               std::pair(layout_.slots()[number].offset, layout_.slots()[number].count);
           state.read("master", offset, count, DType::f32, to.master);
           state.read("first", offset, count, DType::f32, to.first);
           state.read("second", offset, count, DType::f32, to.second);
         }});
}

Trainer::~Trainer() = default;

void Trainer::start(const Start& start) {
  check_options();
  step_ = start.step;
  const int rows_of_group = options_.rows / options_.groups;
  options_.batch_rows = std::min(options_.batch_rows, rows_of_group);
  const bool is_host = options_.device == "cpu";
  // An adapter is small: each rank has all of it.
  const bool is_shared_out = is_host && !options_.lora.is_on();
  owned_ = std::make_unique<OwnedTensors>(layout_, is_shared_out ? options_.ranks : 1);
  const std::shared_ptr<ModelWeights> frozen = frozen_weights(options_);
  const auto add = [&](Group& group) {
    replicas_.push_back(std::make_unique<Replica>(options_, layout_, *owned_, group, frozen));
  };
  if (options_.group) {
    add(*options_.group);
  } else if (options_.ranks > 1) {
    groups_ = make_inproc_groups(options_.ranks);
    for (const auto& group : groups_) {
      if (!is_host) peers_.push_back(make_peer_group(*group, {.seconds = kLongestWait}));
      add(is_host ? *group : *peers_.back());
    }
  } else {
    add(solo_group());
  }
  std::vector<OwnedArrays> here;
  for (const auto& replica : replicas_) here.push_back(replica->arrays());
  arrays_ = std::make_unique<TrainedArrays>(layout_, *owned_, options_.group, std::move(here));
  for (const auto& replica : replicas_) replica->load(start, arrays_->weights());
}

// use(replica, its number among those that are here), at the same time.
template <typename Use>
void Trainer::on_every_rank(Use use) {
  std::vector<std::jthread> others;
  for (size_t r = 1; r < replicas_.size(); ++r)
    others.emplace_back([&, r] { use(*replicas_[r], r); });
  use(*replicas_[0], size_t{0});
}

StepReport Trainer::step(std::span<const PackedRow> rows, double divisor, OperationTimes* times) {
  if (rows.empty() || std::ssize(rows) % options_.groups != 0)
    fail("expected rows that {} groups share evenly, found {}", options_.groups, rows.size());
  Timer timer;
  const int64_t step = step_ + 1;
  std::vector<Replica::Result> results(replicas_.size());
  on_every_rank([&](Replica& replica, size_t r) {
    results[r] = replica.step(step, rows, divisor, r == 0 ? times : nullptr);
  });
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

// Batches go to the ranks that are threads in turn. All compute as many, the last one again where
// there is none left.
std::vector<float> Trainer::log_probabilities(std::span<const PackedRow> rows,
                                              std::vector<float>* entropies) {
  const size_t context = static_cast<size_t>(options_.context);
  const size_t most = static_cast<size_t>(options_.batch_rows);
  const size_t batches = (rows.size() + most - 1) / most, ranks = replicas_.size();
  std::vector<float> result(rows.size() * context);
  if (entropies) entropies->assign(result.size(), 0.0f);
  std::vector<std::string> failures(ranks);
  on_every_rank([&](Replica& replica, size_t r) {
    std::vector<float> again;  // what is computed for the others' sake
    for (size_t turn = 0; turn < batches; turn += ranks) {
      const bool is_left = turn + r < batches;
      const size_t first = most * (is_left ? turn + r : batches - 1);
      const auto batch = rows.subspan(first, std::min(most, rows.size() - first));
      if (!is_left) again.resize(batch.size() * context);
      const std::string failure = replica.log_probabilities(
          batch, is_left ? &result[first * context] : again.data(),
          is_left && entropies ? &(*entropies)[first * context] : nullptr);
      if (failures[r].empty()) failures[r] = failure;
    }
  });
  for (const std::string& failure : failures)
    if (!failure.empty()) fail("{} is not finite", failure);
  return result;
}

void Trainer::logits(std::span<const PackedRow> rows, const TakeLogits& take) {
  CHECK(replicas_.size() == 1, "one rank");
  const auto most = static_cast<size_t>(options_.batch_rows);
  for (size_t first = 0; first < rows.size(); first += most) {
    const auto batch = rows.subspan(first, std::min(most, rows.size() - first));
    const std::string failure =
        replicas_[0]->logits(batch, [&](size_t t, std::span<const float> logits) {
          const auto context = static_cast<size_t>(options_.context);
          take(first + t / context, t % context, logits);
        });
    if (!failure.empty()) fail("{} is not finite", failure);
  }
}

std::vector<int32_t> Trainer::routed_experts(std::span<const PackedRow> rows) {
  const size_t most = static_cast<size_t>(options_.batch_rows);
  std::vector<std::vector<int32_t>> all(replicas_.size());
  on_every_rank([&](Replica& replica, size_t r) {
    for (size_t i = 0; i < rows.size(); i += most)
      replica.append_routed_experts(rows.subspan(i, std::min(most, rows.size() - i)), all[r]);
  });
  return std::move(all[0]);
}

MtpScore Trainer::score_mtp(std::span<const PackedRow> rows) {
  const size_t most = static_cast<size_t>(options_.batch_rows);
  std::vector<MtpScore> scores(replicas_.size());
  on_every_rank([&](Replica& replica, size_t r) {
    for (size_t i = 0; i < rows.size(); i += most)
      replica.score_mtp(rows.subspan(i, std::min(most, rows.size() - i)), scores[r]);
  });
  return scores[0];
}

const TensorSource& Trainer::weights() const {
  return arrays_->weights();
}

const TensorSource& Trainer::state() const {
  return arrays_->state();
}

void Trainer::read_together(const std::function<void()>& use) const {
  if (!options_.group) return use();
  if (options_.group->rank() > 0) return arrays_->serve();
  struct Reading {
    ~Reading() {
      try {
        arrays.end_serving();
      } catch (const PeerLeft&) {  // who has left waits for nothing
      }
    }
    const TrainedArrays& arrays;
  };
  const Reading reading{*arrays_};
  use();
}

void Trainer::copy_state(TrainingState& state) const {
  state.step = step_;
  for (const auto& [name, array] :
       {std::pair("master", &state.master), {"first", &state.first}, {"second", &state.second}}) {
    array->resize(static_cast<size_t>(layout_.size()));
    arrays_->state().read(name, 0, layout_.size(), DType::f32, array->data());
  }
}

}  // namespace invar
