// A decoder and its loss in float64, written apart from the engine: what gradients are checked
// against by finite differences.
#pragma once

#include <map>
#include <vector>

#include "model/parameters.h"

namespace invar {

// The experts that each position goes through, one position after the other, of layers with some.
using ExpertsOfRows = std::map<int, std::vector<int32_t>>;

// One sequence of a training batch. Token i + 1 is the target of token i; weights[i] is what its
// cross-entropy counts.
struct Example {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  std::vector<double> weights;
  // Of the module that predicts one token further: what it is given beside each hidden state, what
  // it is to say, what that counts. Empty without one.
  std::vector<int32_t> next, mtp_targets;
  std::vector<double> mtp_weights;
  // By position: what the module goes on from in place of the model's hidden state.
  std::map<int, std::vector<float>> own = {};
  // The experts that the engine chose. Empty: as the routers say, where two may be so near that its
  // rounding turns them.
  ExpertsOfRows experts = {};
};

// Logits of all positions of a text, [positions][V].
std::vector<double> logits_f64(const DecoderSpec& spec, const ParameterLayout& layout,
                               const std::vector<double>& parameters,
                               const std::vector<int32_t>& tokens);

// The loss that balances experts: what it counts, and the positions of a packed row.
struct BalanceLoss {
  double weight = 0;
  int64_t rows = 32;
};

// Sum over the examples' positions of weight * cross-entropy, and what balances experts.
double loss_f64(const DecoderSpec& spec, const ParameterLayout& layout,
                const std::vector<double>& parameters, const std::vector<Example>& examples,
                const BalanceLoss& balance = {});

}  // namespace invar
