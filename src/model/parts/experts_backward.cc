// The backward of experts, numerics 9. An expert's weights have chains over the leaves of rows that
// hold one that chose it; where a row has not, a leaf has zeros.
#include <algorithm>

#include "base/check.h"
#include "model/parts/experts.h"

namespace invar {

namespace {

using enum TensorRole;

// The rows of all experts: those of expert e are rows[begin[e]] .. rows[begin[e + 1]].
struct ExpertRows {
  std::vector<int32_t> begin, rows;
};

// The origin of each row of the leaves that an expert has rows in: a pair's place, or -1.
std::vector<int32_t> leaf_places(const ExpertRows& of, int expert) {
  std::vector<int32_t> places;
  int32_t leaf = -1;
  for (int32_t j = of.begin[static_cast<size_t>(expert)];
       j < of.begin[static_cast<size_t>(expert) + 1]; ++j) {
    const int32_t row = of.rows[static_cast<size_t>(j)],
                  of_row = row / static_cast<int32_t>(kLeafPad);
    if (of_row != leaf) places.resize(places.size() + kLeafPad, -1);
    leaf = of_row;
    places[places.size() - kLeafPad + static_cast<size_t>(row % kLeafPad)] = j;
  }
  return places;
}

}  // namespace

// y = x * w for the pairs of every expert, each by its own matrix of a stack.
void Experts::pair_product(BackwardPass& b, const char* name, const Activations& at,
                           const Activation& x, const Matrix& w, float* y, int64_t y_stride) const {
  b.run(name, b.forward_kernels().expert_matmul,
        ExpertMatmulParams{.each = {.x = x,
                                    .w = w,
                                    .rows = pairs_of(b),
                                    .split_k = 1,
                                    .bias = nullptr,
                                    .accumulate = false,
                                    .y = y,
                                    .y_stride = y_stride > 0 ? y_stride : w.n},
                           .begin = at.begin,
                           .matmul = b.forward_kernels().matmul});
}

// Those of one expert's matrices that meet the same gradient and the same inputs.
struct Experts::OfExpert {
  TensorRole role;
  Columns columns;
};

void Experts::weight_gradients(BackwardPass& b, const Activations& at, const Activation& dy,
                               int64_t outputs, const Activation& x, int64_t inputs,
                               std::initializer_list<OfExpert> tensors) const {
  if (!b.gradient(tensors.begin()->role, layer_)) return;
  const BackwardWorkspace& ws = b.workspace();
  const int experts = spec_.routing.experts;
  const Activation leaf_dy = BackwardPass::activation(ws.leaf_outputs, outputs);
  const Activation leaf_x = BackwardPass::activation(ws.leaf_inputs, inputs);
  const ExpertRows of{b.fetched(at.begin, experts + 1), b.fetched(at.rows, pairs_of(b))};
  for (int e = 0; e < experts; ++e) {
    const std::vector<int32_t> places = leaf_places(of, e);
    const int64_t rows = std::ssize(places);
    const DeviceArray<int32_t> from = b.sent(places);
    const auto gather = [&](const Activation& all, int64_t width, const Activation& out) {
      b.run("gather leaves", b.kernels().gather_leaves,
            GatherLeavesParams{
                .x = all, .from = from.data(), .rows = rows, .width = width, .out = out});
    };
    gather(dy, outputs, leaf_dy);
    gather(x, inputs, leaf_x);
    if (rows > 0) b.pack_inputs(leaf_x, inputs, rows);
    for (const auto& [role, columns] : tensors) {
      float* gradient =
          b.gradient(role, layer_) + e * round_up(columns.count * inputs, kPanelWidth);
      b.weight_gradient("experts dW", gradient, leaf_dy, columns, inputs, rows);
    }
  }
}

// The addition of the loss that balances experts to the gradient of the scores, for every packed
// row: [.][experts]; empty without one. Over n positions expert e counts as often as it was chosen
// there, times E / n^2.
std::vector<float> Experts::balance(const BackwardPass& b, const Activations& at) const {
  if (b.balance() == 0) return {};
  const Routing& how = spec_.routing;
  const double n = static_cast<double>(b.balance_rows());
  const float factor = static_cast<float>(b.balance() * how.experts / (n * n));
  const std::vector<int32_t> chosen = b.fetched(at.chosen, b.rows() * how.chosen);
  std::vector<float> all;
  for (int64_t begin = 0; begin < b.rows(); begin += b.balance_rows()) {
    std::vector<float> counts(static_cast<size_t>(how.experts));
    const int64_t end = std::min(b.rows(), begin + b.balance_rows());
    for (int64_t i = begin * how.chosen; i < end * how.chosen; ++i)
      counts[static_cast<size_t>(chosen[static_cast<size_t>(i)])] += 1;
    for (const float count : counts) all.push_back(factor * count);
  }
  return all;
}

// The gradient of the router's logits, its weights', and what it adds to that of the layer's input.
// The gate of the shared expert is one logit more.
void Experts::router_backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int count = spec_.routing.experts;
  const Activation d_logits = BackwardPass::activation(ws.router, kept.w.router.n);
  const DeviceArray<float> balance = b.sent(this->balance(b, at));
  b.run("router backward", b.kernels().router_backward,
        RouterBackwardParams{.how = spec_.routing,
                             .logits = at.router,
                             .stride = kept.w.router.n,
                             .ids = at.chosen,
                             .d_weights = ws.expert_weights.data(),
                             .balance = balance.data(),
                             .balance_rows = b.balance_rows(),
                             .d_gates = spec_.shared_gate ? ws.shared_gates.data() : nullptr,
                             .rows = b.rows(),
                             .out = d_logits});
  b.matmul("router dX", d_logits, kept.transposed.router, ws.normed.data(), true);
  b.pack_inputs(at.normed, model_.hidden);
  b.weight_gradient("router dW", b.gradient(router, layer_), d_logits, {0, count}, model_.hidden);
  if (spec_.shared_gate)
    b.weight_gradient("router dW", b.gradient(shared_expert_gate, layer_), d_logits, {count, 1},
                      model_.hidden);
}

// The gradient of what the shared expert gives, rounded, and that of its gate.
Activation Experts::shared_gradients(BackwardPass& b, const Kept& kept) const {
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden;
  if (!spec_.shared_gate) return b.round(b.d_hidden(), d, ws.out);
  const Activation dy = BackwardPass::activation(ws.out, d);
  b.run("shared gradients", b.kernels().shared_gradients,
        SharedGradientsParams{.d = b.d_hidden(),
                              .z = kept.at.router + spec_.routing.experts,
                              .y = kept.at.shared,
                              .z_stride = kept.w.router.n,
                              .y_stride = round_up(d, kLeafPad),
                              .rows = b.rows(),
                              .width = d,
                              .out = dy,
                              .d_gates = ws.shared_gates.data()});
  return dy;
}

// The gradients of the shared expert's weights, and what it adds to that of the layer's input.
void Experts::shared_backward(BackwardPass& b, const Kept& kept, const Activation& dy) const {
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden, f = spec_.shared_width;
  b.matmul("shared down dX", dy, kept.transposed.shared_down, ws.gated.data());
  b.pack_inputs(at.shared_gated, f);
  b.weight_gradient("shared down dW", b.gradient(shared_down, layer_), dy, {0, d}, f);
  const Activation d_pair = BackwardPass::activation(ws.wide, 2 * round_up(f, kPanelWidth));
  b.run("gate backward", b.kernels().gate_backward,
        GateBackwardParams{.gate_up = at.shared_pair,
                           .gate_bias = nullptr,
                           .up_bias = nullptr,
                           .d_gated = ws.gated.data(),
                           .rows = b.rows(),
                           .width = f,
                           .out = d_pair,
                           .curve = Nonlinearity::silu,
                           .layout = kept.w.shared_gate_up.layout});
  b.matmul("shared gated dX", d_pair, kept.transposed.shared_gate_up, ws.normed.data(), true);
  b.pack_inputs(at.normed, d);
  b.weight_gradient("shared gated dW", b.gradient(shared_gate, layer_), d_pair, {0, f, 0}, d);
  b.weight_gradient("shared gated dW", b.gradient(shared_up, layer_), d_pair, {0, f, 1}, d);
}

void Experts::backward(BackwardPass& b, const Kept& kept) const {
  const Activations& at = kept.at;
  const BackwardWorkspace& ws = b.workspace();
  const int64_t d = model_.hidden, f = spec_.width, pair = 2 * round_up(f, kPanelWidth);
  const Activation dy = BackwardPass::activation(ws.pair_outputs, d);
  b.run("pair gradients", b.kernels().pair_gradients,
        PairGradientsParams{.d = b.d_hidden(),
                            .place = at.place,
                            .weights = at.weights,
                            .chosen = spec_.routing.chosen,
                            .rows = b.rows(),
                            .width = d,
                            .y = at.outputs,
                            .out = dy,
                            .d_weights = ws.expert_weights.data()});
  pair_product(b, "experts down dX", at, dy, kept.transposed.down, ws.pair_gated.data());

  // The products of gate and up again, as the forward had them.
  Matrix both = kept.w.gate_up;
  both.n = both.layout == WeightLayout::rows ? 2 * both.all_rows() : pair;
  both.count /= 2;
  pair_product(b, "experts gated", at, at.inputs, both, ws.pair_dots.data(), pair);
  const Activation d_gate_up = BackwardPass::activation(ws.pair_wide, pair);
  b.run("gate backward", b.kernels().gate_backward,
        GateBackwardParams{.gate_up = ws.pair_dots.data(),
                           .gate_bias = nullptr,
                           .up_bias = nullptr,
                           .d_gated = ws.pair_gated.data(),
                           .rows = pairs_of(b),
                           .width = f,
                           .out = d_gate_up,
                           .curve = spec_.curve,
                           .layout = both.layout});
  pair_product(b, "experts gated dX", at, d_gate_up, kept.transposed.gate_up,
               ws.pair_inputs.data());
  b.run("sum pairs", b.kernels().sum_pairs,
        SumPairsParams{.x = ws.pair_inputs.data(),
                       .x_stride = d,
                       .place = at.place,
                       .chosen = spec_.routing.chosen,
                       .rows = b.rows(),
                       .width = d,
                       .out = ws.normed.data()});
  const bool has_shared = spec_.shared_width > 0;
  const Activation d_shared = has_shared ? shared_gradients(b, kept) : Activation{};
  router_backward(b, kept);
  if (has_shared) shared_backward(b, kept, d_shared);
  weight_gradients(b, at, dy, d, at.gated, f, {{expert_down, {0, d}}});
  weight_gradients(b, at, d_gate_up, pair, at.inputs, d,
                   {{expert_gate, {0, f, 0}}, {expert_up, {0, f, 1}}});
  b.norm({post_norm, layer_, kept.w.norm}, at.stream);
}

const char* Experts::refusal() const {
  if (spec_.routing.score != ExpertScore::softmax && spec_.routing.score != ExpertScore::sigmoid)
    return "its router scores the chosen experts alone, and the gradient of that is not "
           "implemented";
  if (spec_.is_beside || model_.residual_scale != 1)
    return "its experts stand beside a dense network or their sum is scaled, whose gradient is not "
           "implemented";
  if (spec_.latent > 0)
    return "its experts read a latent vector, whose gradient is not implemented";
  if (spec_.has_biases || !spec_.is_gated || spec_.curve != Nonlinearity::silu)
    return "its experts have biases or another curve than silu, whose gradient is not implemented";
  return nullptr;
}

}  // namespace invar
