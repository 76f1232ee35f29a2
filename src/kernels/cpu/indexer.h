// The indexer (numerics 4.6) for the table of kernels.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/indexer.h"

namespace invar::cpu {

void index_scores(AddIndexScores add, const IndexScoresParams& p, const Execution& on);
void choose_slots(const ChooseSlotsParams& p, const Execution& on);
void gather_slots(const GatherSlotsParams& p, const Execution& on);

template <const AttendFunctions& attend, Order order = Order::portable>
void override_indexer(Kernels& kernels) {
  kernels.choose_slots = choose_slots;
  kernels.gather_slots = gather_slots;
  if (kernels.order != order) return;
  kernels.index_scores = [](const IndexScoresParams& p, const Execution& on) {
    index_scores(attend.index, p, on);
  };
}

}  // namespace invar::cpu
