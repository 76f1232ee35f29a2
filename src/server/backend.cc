#include "backend.h"

#include <algorithm>

#include "base/error.h"
#include "base/fields.h"

namespace invar::server {

namespace {

void add(int32_t& all, int32_t one) {
  all += one;
}
void add(int64_t& all, int64_t one) {
  all += one;
}
void add(std::vector<int64_t>& all, const std::vector<int64_t>& one) {
  all.resize(std::max(all.size(), one.size()));
  for (size_t i = 0; i < one.size(); ++i) all[i] += one[i];
}

// f(field of all, field of one) for every field.
void for_each_field(BackendStats& all, const BackendStats& one, auto f) {
  const auto of_one = fields_of(one);
  const auto of_all = fields_of(all);
  [&]<size_t... kField>(std::index_sequence<kField...>) {
    (f(std::get<kField>(of_all), std::get<kField>(of_one)), ...);
  }
  (std::make_index_sequence<std::tuple_size_v<decltype(of_all)>>());
}

}  // namespace

void add_to(BackendStats& all, const BackendStats& one) {
  for_each_field(all, one, [](auto& sum, const auto& more) { add(sum, more); });
}

void add_counters(BackendStats& all, const BackendStats& one) {
  for_each_field(all, one, [](auto& sum, const auto& more) {
    if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(more)>, int32_t>) add(sum, more);
  });
}

void Backend::take_weights(const std::string&) {
  fail_usage("the weights here are fixed");
}

void Backend::take_received(WeightReceiver&) {
  fail_usage("the engine here takes no weights by NCCL");
}

void Backend::sleep(const Sleep&) {
  fail_usage("the engine here does not sleep");
}

void Backend::wake(const Wake&) {}

}  // namespace invar::server
