#include "model/adapter_step.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/error.h"

namespace invar {

AdapterStep::Slot& AdapterStep::slot_at(int32_t number) {
  const auto at = static_cast<size_t>(number);
  if (slots_.size() <= at) slots_.resize(at + 1);
  return slots_[at];
}

int64_t AdapterStep::most_bytes(const DecoderSpec& spec, AdapterUser user, int64_t rows,
                                int64_t rank) {
  int64_t outputs = 0;
  for (const AdapterModule& module : adaptable_modules(spec, user))
    outputs = std::max(outputs, round_up(module.outputs, kLeafPad));
  const int64_t ranks = kMostTensorsBeside * round_up(rank, kLeafPad);
  int64_t of_experts = 0;
  for (const LayerSpec& layer : spec.layer_specs)
    if (const ExpertsSpec* experts = layer.experts(); experts && user == AdapterUser::cpu)
      of_experts = std::max(
          of_experts, experts->routing.chosen * (2 * round_up(experts->width, kLeafPad) + ranks));
  const int64_t values = 2 * outputs + round_up(spec.hidden, kLeafPad) + ranks + of_experts;
  return rows * values * static_cast<int64_t>(sizeof(float));
}

void AdapterStep::put(const Decoder& decoder, int32_t slot, int32_t rank,
                      std::shared_ptr<const AdapterWeights> weights) {
  Slot& to = slot_at(slot);
  to.load = {.slot = slot, .rank = rank, .directory = {}, .digest = {}};
  fill(decoder, to, std::move(weights));
}

// A device's tables forget what was there before it goes.
void AdapterStep::fill(const Decoder& decoder, Slot& slot,
                       std::shared_ptr<const AdapterWeights> weights) {
  const bool is_on_device = !decoder.device().is_host();
  if (is_on_device) tables_.put(decoder, slot.load.slot, nullptr);
  slot.weights = std::move(weights);
  slot.targets = slot.weights ? set_of(*slot.weights) : -1;
  if (is_on_device && slot.weights) tables_.put(decoder, slot.load.slot, slot.weights.get());
}

int32_t AdapterStep::set_of(const AdapterWeights& weights) {
  Targets targets;
  for (const auto& [matrix, product] : weights.products()) targets.push_back(matrix);
  const auto found = std::ranges::find(sets_, targets);
  if (found != sets_.end()) return static_cast<int32_t>(found - sets_.begin());
  sets_.push_back(std::move(targets));
  return static_cast<int32_t>(std::ssize(sets_) - 1);
}

void AdapterStep::load(const Decoder& decoder, const AdapterLoad& load) {
  Slot& slot = slot_at(load.slot);
  slot.load = load;
  fill(decoder, slot, nullptr);
  std::optional<ThreadPool> own;  // where kernels are launched there is none
  ThreadPool& pool = decoder.execution.pool ? *decoder.execution.pool : own.emplace(1);
  try {
    const LoraAdapter adapter(load.directory);
    if (to_hex(adapter.digest(pool)) != load.digest || adapter.most_rank() != load.rank) return;
    fill(decoder, slot, std::make_shared<const AdapterWeights>(decoder, adapter));
  } catch (const Error&) {  // what was read when the request came is there no longer
  }
}

void AdapterStep::begin(const Decoder& decoder, const Batch& batch, int max_rows) {
  is_on_host_ = decoder.device().is_host();
  max_rows_ = max_rows;
  for (const AdapterLoad& one : batch.adapters) load(decoder, one);
  find_rows(batch);
  find_targets();
  if (is_empty()) return;
  take_memory(decoder);
  if (!is_on_host_) build_tables(decoder, std::ssize(batch.rows));
}

void AdapterStep::find_rows(const Batch& batch) {
  num_used_ = 0;
  used_of_row_.assign(batch.rows.size(), -1);
  for (int32_t t = 0; t < std::ssize(batch.rows); ++t) {
    const int32_t number = batch.sequences[static_cast<size_t>(batch.rows[t].sequence)].adapter;
    if (number < 0) continue;
    CHECK(number < std::ssize(slots_), "a row of an adapter that was not loaded");
    Used& used = use(number);
    used_of_row_[static_cast<size_t>(t)] = static_cast<int32_t>(&used - used_.data());
    ++used.rows;
    if (!used.runs.empty() && used.runs.back().first + used.runs.back().count == t)
      ++used.runs.back().count;
    else
      used.runs.push_back({t, 1});
  }
}

void AdapterStep::find_targets() {
  targets_.clear();
  for (const Used& used : used())
    if (used.slot->targets >= 0) targets_.push_back(used.slot->targets);
  std::ranges::sort(targets_);
  targets_.erase(std::unique(targets_.begin(), targets_.end()), targets_.end());
}

void AdapterStep::build_tables(const Decoder& decoder, int64_t rows) {
  rows_of_slots_.clear();
  for (const Used& used : used()) rows_of_slots_.push_back({used.slot->load.slot, used.runs});
  tables_.build(decoder, rows_of_slots_, rows);
}

// Rows of one sequence stand together: mostly it is the last one.
AdapterStep::Used& AdapterStep::use(int32_t number) {
  const Slot* slot = &slots_[static_cast<size_t>(number)];
  for (size_t i = num_used_; i-- > 0;)
    if (used_[i].slot == slot) return used_[i];
  if (used_.size() == num_used_) used_.emplace_back();
  Used& used = used_[num_used_++];
  used.slot = slot;
  used.runs.clear();
  used.rows = 0;
  return used;
}

void AdapterStep::take_memory(const Decoder& decoder) {
  int64_t rank = 0;
  for (const Used& used : used()) rank = std::max<int64_t>(rank, used.slot->load.rank);
  if (rank <= rank_) return;
  rank_ = rank;
  type_ = decoder.arithmetic.activations();
  const int64_t width =
      (is_on_host_ ? kMostTensorsBeside : kMostAdapterTensors) * round_up(rank, kLeafPad);
  const size_t values = static_cast<size_t>(max_rows_ * width);
  sums_ = {decoder.device(), values, "adapters' activations"};
  if (is_on_host_)
    inner_ = {decoder.device(), values * static_cast<size_t>(size_of(type_)),
              "adapters' activations"};
}

bool AdapterStep::is_beside(const Matrix& w) const {
  const auto* end = static_cast<const std::byte*>(w.data) + w.bytes();
  return std::ranges::any_of(targets_, [&](int32_t set) {
    const Targets& targets = sets_[static_cast<size_t>(set)];
    const auto first = std::ranges::lower_bound(targets, w.data);
    return first != targets.end() && *first < static_cast<const void*>(end);
  });
}

bool AdapterStep::has_broken() const {
  return std::ranges::any_of(used(), [](const Used& used) { return !used.slot->weights; });
}

void AdapterStep::poison(const Decoder& decoder, float* hidden) {
  if (!has_broken()) return;
  const int64_t width = decoder.spec.hidden;
  const size_t bytes = static_cast<size_t>(width) * sizeof(float);
  if (nan_.size() == 0) {
    const std::vector<float> row(static_cast<size_t>(width),
                                 std::numeric_limits<float>::quiet_NaN());
    nan_ = {decoder.device(), row.size(), "a broken adapter's row"};
    decoder.device().upload(nan_.data(), row.data(), bytes);
  }
  for (const Used& used : used())
    for (size_t i = 0; i < (used.slot->weights ? 0 : used.runs.size()); ++i)
      for (int32_t t = used.runs[i].first; t < used.runs[i].first + used.runs[i].count; ++t)
        decoder.execution.stream->copy_rows(hidden + t * width, bytes, nan_.data(), bytes, bytes,
                                            1);
}

AdapterShape AdapterStep::shape() const {
  if (is_empty()) return {};
  return {.tables = tables_.tables(),
          .targets = targets_,
          .rank = rank_,
          .sums = sums_.data(),
          .pair_products = pair_products_.data(),
          .added = added_.data()};
}

// The strides are those of the widest adapter so far, on every rank.
AdapterParams AdapterStep::params_on_device(const Matrix& w, bool is_shared) const {
  const int64_t width = (is_shared ? 1 : kMostAdapterTensors) * round_up(rank_, kLeafPad);
  return {.tables = tables_.beside(w, rank_),
          .x = {},
          .sums = sums_.data(),
          .sums_stride = width,
          .inner = {}};
}

AdapterGroup AdapterStep::group_of(const AdapterWeights::Product& product) const {
  return {.a = product.a,
          .outputs = product.outputs.data(),
          .tensors = static_cast<int32_t>(product.outputs.size())};
}

AdapterParams AdapterStep::params_of_groups(int64_t width) const {
  return {.groups = groups_.data(),
          .num_groups = static_cast<int32_t>(groups_.size()),
          .x = {},
          .sums_stride = width,
          .inner = {nullptr, type_, width}};
}

AdapterParams AdapterStep::params(const Matrix& w, bool is_shared) {
  if (!is_on_host_) return params_on_device(w, is_shared);
  groups_.clear();
  int64_t width = 0;
  for (const Used& used : used()) {
    if (is_shared) width = std::max(width, round_up(used.slot->load.rank, kLeafPad));
    const AdapterWeights* weights = used.slot->weights.get();
    const AdapterWeights::Product* product = weights ? weights->beside(w) : nullptr;
    if (!product) continue;
    width = std::max(width, product->a.n);
    AdapterGroup& group = groups_.emplace_back(group_of(*product));
    group.runs = used.runs.data();
    group.num_runs = static_cast<int32_t>(used.runs.size());
    group.rows = used.rows;
  }
  AdapterParams params = params_of_groups(width);
  params.sums = sums_.data();
  params.inner.data = inner_.data();
  return params;
}

AdapterParams AdapterStep::params_of_experts(const Decoder& decoder, const Matrix& stack,
                                             int64_t size, const int32_t* begin,
                                             const int32_t* rows_of) {
  groups_.clear();
  runs_.clear();
  const int64_t experts = stack.count / size, pairs = begin[experts];
  runs_.reserve(static_cast<size_t>(pairs));  // groups point into it
  for (int64_t i = 0; i < experts; ++i)
    add_groups_of_expert(stack.part(i * size, size), begin[i], begin[i + 1], rows_of);
  int64_t width = 0;
  for (const AdapterGroup& group : groups_) width = std::max(width, group.a.n);
  AdapterParams params = params_of_groups(width);
  params.sums = room(expert_sums_, decoder, pairs, width);
  const size_t bytes = static_cast<size_t>(pairs * width * size_of(type_));
  if (expert_inner_.size() < bytes)
    expert_inner_ = {decoder.device(), bytes, "adapters' activations"};
  params.inner.data = expert_inner_.data();
  return params;
}

void AdapterStep::add_groups_of_expert(const Matrix& w, int32_t begin, int32_t end,
                                       const int32_t* rows_of) {
  for (int32_t number = 0; begin < end && number < std::ssize(used()); ++number) {
    const AdapterWeights* weights = used()[static_cast<size_t>(number)].slot->weights.get();
    const AdapterWeights::Product* product = weights ? weights->beside(w) : nullptr;
    if (!product) continue;
    AdapterGroup group = group_of(*product);
    group.runs = runs_.data() + runs_.size();
    for (int32_t j = begin; j < end; ++j) {
      if (used_of_row_[static_cast<size_t>(rows_of[j])] != number) continue;
      const bool goes_on = group.num_runs > 0 && runs_.back().first + runs_.back().count == j;
      if (goes_on)
        ++runs_.back().count;
      else
        runs_.push_back({j, 1});
      group.num_runs += !goes_on;
      ++group.rows;
    }
    if (group.rows > 0) groups_.push_back(group);
  }
}

float* AdapterStep::room(DeviceArray<float>& of, const Decoder& decoder, int64_t rows,
                         int64_t columns) const {
  constexpr int64_t kRecordedRows = 256;
  const auto values = [&](int64_t count) { return static_cast<size_t>(count * columns); };
  if (of.size() >= values(rows)) return of.data();
  if (!is_on_host_) {
    const auto more = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
    rows = std::min<int64_t>(std::max(more, kRecordedRows), max_rows_);
  }
  of = {decoder.device(), values(rows), "adapters' activations"};
  return of.data();
}

float* AdapterStep::pair_products(const Decoder& decoder, int64_t rows, int64_t columns) {
  return room(pair_products_, decoder, rows, columns);
}

float* AdapterStep::added(const Decoder& decoder, int64_t rows) {
  return room(added_, decoder, rows, round_up(decoder.spec.hidden, kLeafPad));
}

}  // namespace invar
