// Operations of caches in 8 bits that order `hopper` has on a GPU.
#pragma once

#include "kernels/inference.h"

namespace invar::cuda {

// load_slots of tables with many rows, where attention of the others reads what is stored.
void load_slots_of_many_rows(const LoadSlotsParams& p, const Execution& on);

}  // namespace invar::cuda
