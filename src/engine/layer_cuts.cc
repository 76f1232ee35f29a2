#include "engine/layer_cuts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/families/tensor_table.h"

namespace invar {

namespace {

bool is_of_expert(TensorRole role) {
  using enum TensorRole;
  return role == expert_gate || role == expert_up || role == expert_down;
}

// The share of a layer's experts that kCostRows rows choose.
double share_of_experts(const Routing& routing) {
  const double chosen = static_cast<double>(routing.chosen) / routing.experts;
  return 1 - std::pow(1 - chosen, kCostRows);
}

// Elements that a step reads.
std::vector<double> layer_costs(const DecoderSpec& spec) {
  std::vector<double> costs(static_cast<size_t>(spec.layers), 0.0);
  const TensorRole head = spec.tied_head ? TensorRole::embedding : TensorRole::head;
  for (const TensorSpec& tensor : tensors_of(spec)) {
    if (tensor.shape.size() != 2 || tensor.layer >= spec.layers) continue;
    double elements = static_cast<double>(tensor.shape[0]) * static_cast<double>(tensor.shape[1]);
    if (is_of_expert(tensor.role))
      elements *= share_of_experts(spec.layer(tensor.layer).experts()->routing);
    if (tensor.layer >= 0)
      costs[static_cast<size_t>(tensor.layer)] += elements;
    else if (tensor.role == head)
      costs.back() += kHeadShare * elements;
  }
  return costs;
}

}  // namespace

std::vector<int> balanced_cuts(const DecoderSpec& spec, int stages) {
  const int layers = spec.layers;
  if (stages < 1 || stages > layers)
    fail_usage("expected a pipeline-parallel size of 1 to {}, a stage for each layer, found {}",
               layers, stages);
  const std::vector<double> costs = layer_costs(spec);
  std::vector<double> before(costs.size() + 1, 0.0);  // of the layers before this one
  for (size_t i = 0; i < costs.size(); ++i) before[i + 1] = before[i] + costs[i];
  // slowest[s][l]: the least cost of the slowest of s stages with the first l layers; where the
  // last of them begins. Among equal ones the latest counts.
  const auto count = static_cast<size_t>(layers) + 1, all = static_cast<size_t>(stages) + 1;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector slowest(all, std::vector(count, kNever));
  std::vector begin(all, std::vector<size_t>(count, 0));
  slowest[0][0] = 0;
  for (size_t s = 1; s < all; ++s)
    for (size_t l = s; l < count; ++l)
      for (size_t first = s - 1; first < l; ++first) {
        const double slow = std::max(slowest[s - 1][first], before[l] - before[first]);
        if (slow <= slowest[s][l]) slowest[s][l] = slow, begin[s][l] = first;
      }
  std::vector<int> cuts;
  size_t end = count - 1;
  for (size_t s = all - 1; s > 1; --s) cuts.push_back(static_cast<int>(end = begin[s][end]));
  std::ranges::reverse(cuts);
  return cuts;
}

}  // namespace invar
