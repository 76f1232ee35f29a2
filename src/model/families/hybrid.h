// Tools for families whose layers are of several kinds, named in a list.
#pragma once

#include <vector>

#include "model/families/experts.h"

namespace invar {

// The index of each layer's kind among `names`, as the key lists them; without the key, none.
std::vector<size_t> read_kinds(ConfigReader& reader, std::string_view key, int layers,
                               std::span<const std::string_view> names);

// The limits of a state space's steps, as time_step_limit says them.
void read_step_limits(ConfigReader& reader, StateSpaceSpec& spec);
void write_step_limits(const StateSpaceSpec& spec, json::Value& config);

using Rows = std::function<int64_t(int64_t)>;

// Rows that stand behind `first` others.
inline Rows behind(int64_t first) {
  return [first](int64_t row) { return first + row; };
}

// A tap of a convolution that stands as [channels][1][taps], for channels from `first` on.
StoredAt stored_tap(const TensorSpec& tensor, std::string name, int64_t channels, int64_t first,
                    int taps);

// Mamba 2, whose gates, values, keys, queries and steps are the rows of one matrix of `module`
// ("model.layers.0.mamba."), and whose convolution is over values, keys and queries.
StoredAt stored_state_space(const StateSpaceSpec& spec, const TensorSpec& tensor,
                            const std::string& module);

}  // namespace invar
