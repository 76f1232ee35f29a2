// The backward of experts, numerics 9. An expert's weights have chains over the leaves of rows that
// hold one that chose it; where a row has not, a leaf has zeros.
#include <algorithm>

#include "base/check.h"
#include "model/backward_pass.h"
#include "model/parts/experts_backward.h"

namespace invar {

namespace {

using enum TensorRole;

int64_t pairs_of(const BackwardPass& b, const ExpertsSpec& experts) {
  return b.rows() * experts.routing.chosen;
}

// y = x * w for the pairs of every expert, each by its own matrix of a stack.
void expert_product(BackwardPass& b, const char* name, const ExpertsSpec& experts, int layer,
                    const Activation& x, const Matrix& w, float* y) {
  b.run(name, b.forward_kernels().expert_matmul,
        ExpertMatmulParams{.each = {.x = x,
                                    .w = w,
                                    .rows = pairs_of(b, experts),
                                    .split_k = 1,
                                    .bias = nullptr,
                                    .accumulate = false,
                                    .y = y,
                                    .y_stride = w.n},
                           .begin = b.activations(layer).expert_begin,
                           .matmul = b.forward_kernels().matmul});
}

// What each row of the leaves that an expert has rows in comes from: a pair's place, or -1.
std::vector<int32_t> leaf_places(const LayerActivations& at, int expert) {
  std::vector<int32_t> places;
  int32_t leaf = -1;
  for (int32_t j = at.expert_begin[expert]; j < at.expert_begin[expert + 1]; ++j) {
    const int32_t row = at.expert_rows[j], of_row = row / static_cast<int32_t>(kLeafPad);
    if (of_row != leaf) places.resize(places.size() + kLeafPad, -1);
    leaf = of_row;
    places[places.size() - kLeafPad + static_cast<size_t>(row % kLeafPad)] = j;
  }
  return places;
}

// Those of one expert's matrices that meet the same gradient and the same inputs.
struct OfExpert {
  TensorRole role;
  Columns columns;
};

void weight_gradients(BackwardPass& b, int layer, const Activation& dy, int64_t outputs,
                      const Activation& x, int64_t inputs,
                      std::initializer_list<OfExpert> tensors) {
  const LayerActivations& at = b.activations(layer);
  const BackwardWorkspace& ws = b.workspace();
  const int experts = b.spec().layer(layer).experts->routing.experts;
  const Activation leaf_dy = BackwardPass::activation(ws.leaf_outputs, outputs);
  const Activation leaf_x = BackwardPass::activation(ws.leaf_inputs, inputs);
  for (int e = 0; e < experts; ++e) {
    const std::vector<int32_t> from = leaf_places(at, e);
    const int64_t rows = std::ssize(from);
    const auto gather = [&](const Activation& all, int64_t width, const Activation& out) {
      b.run("gather leaves", b.kernels().gather_leaves,
            GatherLeavesParams{
                .x = all, .from = from.data(), .rows = rows, .width = width, .out = out});
    };
    gather(dy, outputs, leaf_dy);
    gather(x, inputs, leaf_x);
    if (rows > 0) b.pack_inputs(leaf_x, inputs, rows);
    for (const auto& [role, columns] : tensors) {
      float* gradient = b.gradient(role, layer) + e * round_up(columns.count * inputs, kPanelWidth);
      b.weight_gradient("experts dW", gradient, leaf_dy, columns, inputs, rows);
    }
  }
}

// The gradient of the router's logits, its weights', and what it adds to that of the layer's input.
void router_backward(BackwardPass& b, int layer, const ExpertsSpec& experts) {
  const LayerActivations& at = b.activations(layer);
  const BackwardWorkspace& ws = b.workspace();
  const int count = experts.routing.experts;
  const Activation d_logits = BackwardPass::activation(ws.router, count);
  const std::vector<float> balance = b.balance(layer);
  b.run("router backward", b.kernels().router_backward,
        RouterBackwardParams{.how = experts.routing,
                             .logits = at.router,
                             .stride = count,
                             .ids = at.chosen,
                             .d_weights = ws.expert_weights.data(),
                             .balance = balance.empty() ? nullptr : balance.data(),
                             .balance_rows = b.balance_rows(),
                             .rows = b.rows(),
                             .out = d_logits});
  b.matmul("router dX", d_logits, b.transposed(layer).router, ws.normed.data(), true);
  b.pack_inputs(at.ffn_normed, b.spec().hidden);
  b.weight_gradient("router dW", b.gradient(router, layer), d_logits, {0, count}, b.spec().hidden);
}

}  // namespace

void experts_backward(BackwardPass& b, int layer) {
  const ExpertsSpec experts = *b.spec().layer(layer).experts;
  const LayerActivations& at = b.activations(layer);
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = b.spec().hidden, f = experts.width, pair = 2 * round_up(f, kPanelWidth);
  const Activation dy = BackwardPass::activation(ws.pair_outputs, d);
  b.run("pair gradients", b.kernels().pair_gradients,
        PairGradientsParams{.d = b.d_hidden(),
                            .place = at.expert_place,
                            .weights = at.expert_weights,
                            .chosen = experts.routing.chosen,
                            .rows = b.rows(),
                            .width = d,
                            .y = at.expert_outputs,
                            .out = dy,
                            .d_weights = ws.expert_weights.data()});
  expert_product(b, "experts down dX", experts, layer, dy, b.transposed(layer).expert_down,
                 ws.pair_gated.data());

  // The products of gate and up again, as the forward had them.
  Matrix both = b.weights(layer).expert_gate_up;
  both.n = pair;
  both.count /= 2;
  expert_product(b, "experts gated", experts, layer, at.expert_inputs, both, ws.pair_dots.data());
  const Activation d_gate_up = BackwardPass::activation(ws.pair_wide, pair);
  b.run("gate backward", b.kernels().gate_backward,
        GateBackwardParams{.gate_up = ws.pair_dots.data(),
                           .gate_bias = nullptr,
                           .up_bias = nullptr,
                           .d_gated = ws.pair_gated.data(),
                           .rows = pairs_of(b, experts),
                           .width = f,
                           .out = d_gate_up,
                           .curve = experts.curve});
  expert_product(b, "experts gated dX", experts, layer, d_gate_up,
                 b.transposed(layer).expert_gate_up, ws.pair_inputs.data());
  b.run("sum pairs", b.kernels().sum_pairs,
        SumPairsParams{.x = ws.pair_inputs.data(),
                       .x_stride = d,
                       .place = at.expert_place,
                       .chosen = experts.routing.chosen,
                       .rows = b.rows(),
                       .width = d,
                       .out = ws.normed.data()});
  router_backward(b, layer, experts);
  weight_gradients(b, layer, dy, d, at.expert_gated, f, {{expert_down, {0, d}}});
  weight_gradients(b, layer, d_gate_up, pair, at.expert_inputs, d,
                   {{expert_gate, {0, f, 0}}, {expert_up, {0, f, 1}}});
  b.norm({post_norm, layer, b.weights(layer).ffn_norm}, at.middle);
}

const char* experts_refusal(const ExpertsSpec& experts) {
  if (experts.routing.score != ExpertScore::softmax || experts.routing.groups > 1 ||
      experts.has_choice_bias)
    return "its router is not a softmax over all experts, and the gradient of another is not "
           "implemented";
  if (experts.shared_width > 0 || experts.has_biases || experts.curve != Nonlinearity::silu)
    return "it has a shared expert, or experts with biases, whose gradient is not implemented";
  return nullptr;
}

}  // namespace invar
