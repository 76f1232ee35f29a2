// Which layers a target can do without when it drafts for itself (SWIFT): found at the start, on a
// text that the target itself makes up, by leaving out one layer after the other, each time that
// without which the target's own next tokens stay the likeliest.
#pragma once

#include <vector>

#include "engine/model.h"

namespace invar {

// 45 % of the layers, as in the paper, but never the first and the last; ascending. Costs about
// L * L / 3 steps of 48 rows for L layers. `threads` null: the model's own.
std::vector<int> search_layers_to_skip(Model& target, ThreadPool* threads = nullptr);

}  // namespace invar
