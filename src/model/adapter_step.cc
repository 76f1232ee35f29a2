#include "model/adapter_step.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace invar {

namespace {

// Tensors that one product may have: q, k and v.
constexpr int64_t kMostTensors = 3;

}  // namespace

AdapterStep::Slot& AdapterStep::slot_at(int32_t number) {
  const auto at = static_cast<size_t>(number);
  if (slots_.size() <= at) slots_.resize(at + 1);
  return slots_[at];
}

void AdapterStep::put(int32_t slot, int32_t rank, std::shared_ptr<const AdapterWeights> weights) {
  slot_at(slot) = {{.slot = slot, .rank = rank, .directory = {}, .digest = {}}, std::move(weights)};
}

void AdapterStep::load(const Decoder& decoder, const AdapterLoad& load) {
  Slot& slot = slot_at(load.slot);
  slot = {load, nullptr};
  try {
    const PeftAdapter adapter(load.directory);
    if (to_hex(adapter.digest(*decoder.execution.pool)) != load.digest ||
        adapter.most_rank() != load.rank)
      return;
    slot.weights = std::make_shared<const AdapterWeights>(decoder, adapter);
  } catch (const Error&) {  // what was read when the request came is there no longer
  }
}

void AdapterStep::begin(const Decoder& decoder, const Batch& batch, int max_rows) {
  for (const AdapterLoad& one : batch.adapters) load(decoder, one);
  num_used_ = 0;
  for (int32_t t = 0; t < std::ssize(batch.rows); ++t) {
    const int32_t number = batch.sequences[static_cast<size_t>(batch.rows[t].sequence)].adapter;
    if (number < 0) continue;
    CHECK(number < std::ssize(slots_), "a row of an adapter that was not loaded");
    Used& used = use(number);
    ++used.rows;
    if (!used.runs.empty() && used.runs.back().first + used.runs.back().count == t)
      ++used.runs.back().count;
    else
      used.runs.push_back({t, 1});
  }
  if (!is_empty()) take_memory(decoder, max_rows);
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

void AdapterStep::take_memory(const Decoder& decoder, int max_rows) {
  int64_t width = 0;
  for (const Used& used : used())
    width = std::max(width, kMostTensors * round_up(used.slot->load.rank, kLeafPad));
  if (width <= width_) return;
  width_ = width;
  type_ = decoder.arithmetic.activations();
  const size_t values = static_cast<size_t>(max_rows * width);
  sums_ = {decoder.device(), values, "adapters' activations"};
  inner_ = {decoder.device(), values * static_cast<size_t>(size_of(type_)),
            "adapters' activations"};
}

bool AdapterStep::is_beside(const Matrix& w) const {
  return std::ranges::any_of(used(), [&](const Used& used) {
    return used.slot->weights && used.slot->weights->beside(w);
  });
}

void AdapterStep::poison(float* hidden, int64_t width) const {
  for (const Used& used : used())
    for (size_t i = 0; i < (used.slot->weights ? 0 : used.runs.size()); ++i)
      std::fill_n(hidden + used.runs[i].first * width, used.runs[i].count * width,
                  std::numeric_limits<float>::quiet_NaN());
}

AdapterParams AdapterStep::params(const Matrix& w, bool is_shared) {
  groups_.clear();
  int64_t width = 0;
  for (const Used& used : used()) {
    if (is_shared) width = std::max(width, round_up(used.slot->load.rank, kLeafPad));
    const AdapterWeights* weights = used.slot->weights.get();
    const AdapterWeights::Product* product = weights ? weights->beside(w) : nullptr;
    if (!product) continue;
    width = std::max(width, product->a.n);
    groups_.push_back({.a = product->a,
                       .outputs = product->outputs.data(),
                       .tensors = static_cast<int32_t>(product->outputs.size()),
                       .runs = used.runs.data(),
                       .num_runs = static_cast<int32_t>(used.runs.size()),
                       .rows = used.rows});
  }
  return {.groups = groups_.data(),
          .num_groups = static_cast<int32_t>(groups_.size()),
          .x = {},
          .sums = sums_.data(),
          .sums_stride = width,
          .inner = {inner_.data(), type_, width}};
}

float* AdapterStep::pair_products(const Decoder& decoder, int64_t rows, int64_t columns) {
  const size_t values = static_cast<size_t>(rows * columns);
  if (pair_products_.size() < values)
    pair_products_ = {decoder.device(), values, "adapters' activations"};
  return pair_products_.data();
}

float* AdapterStep::added(const Decoder& decoder, int64_t rows) {
  const size_t values = static_cast<size_t>(rows * round_up(decoder.spec.hidden, kLeafPad));
  if (added_.size() < values) added_ = {decoder.device(), values, "adapters' activations"};
  return added_.data();
}

}  // namespace invar
