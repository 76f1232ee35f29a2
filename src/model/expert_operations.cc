// The operations of a layer with experts (numerics 7).
#include <algorithm>

#include "model/operations.h"
#include "model/parts/layer_pass.h"

namespace invar {

// The experts that all rows are to go through in that layer, or null.
const int32_t* Operations::given_experts(int layer) const {
  if (given_experts_.empty() || layer >= spec_.layers) return nullptr;
  int64_t before = 0;
  for (int i = 0; i < layer; ++i)
    if (const auto& experts = spec_.layer(i).experts) before += experts->routing.chosen;
  return given_experts_.data() + before * rows_;
}

MatmulParams Operations::router_of(const LayerPass& p) const {
  return {.x = p.at.ffn_normed,
          .w = p.w.router,
          .rows = rows_,
          .split_k = plan_.split_k(1, p.w.router.k),
          .bias = p.w.router_bias,
          .accumulate = false,
          .y = p.at.router,
          .y_stride = p.w.router.n,
          .scratch = ws_.blocks_scratch.data()};
}

// Whether the norm, the router and the choice are one operation.
bool Operations::goes_at_once(const LayerPass& p) const {
  return at_once_.route_experts && std::holds_alternative<std::monostate>(waiting_) &&
         p.w.ffn_norm && p.w.router.type == DType::bf16;
}

void Operations::route(const LayerPass& p) {
  const Routing& how = p.spec.experts->routing;
  const LayerActivations& at = p.at;
  const RouteParams route{.how = how,
                          .logits = at.router,
                          .stride = p.w.router.n,
                          .bias = p.w.choice_bias,
                          .rows = rows_,
                          .ids = at.chosen,
                          .weights = at.expert_weights,
                          .given = given_experts(p.layer)};
  const SortRowsParams sort{.ids = at.chosen,
                            .expert_places = p.w.expert_places,
                            .rows = rows_,
                            .chosen = how.chosen,
                            .experts = shard_.expert_places(p.spec),
                            .begin = at.expert_begin,
                            .place = at.expert_place,
                            .rows_of = at.expert_rows};
  const int first = shard_.first_expert(p.spec, shard_.rank);
  const GatherRowsParams gather{.x = at.ffn_normed,
                                .width = spec_.hidden,
                                .rows_of = at.expert_rows,
                                .begin = at.expert_begin + first,
                                .experts = shard_.first_expert(p.spec, shard_.rank + 1) - first,
                                .most_rows = rows_ * how.chosen,
                                .out = at.expert_inputs};
  const bool are_few = kernels_.choose_experts && gather.most_rows <= kFewPairs;
  if (are_few && goes_at_once(p))
    return run("norm, router, choose", at_once_.route_experts,
               RouteExpertsParams{.norm = norm_of(p.hidden, p.w.ffn_norm, at.ffn_normed),
                                  .router = router_of(p),
                                  .choose = {route, sort, gather}});
  norm(p.hidden, p.w.ffn_norm, at.ffn_normed);
  run_product("router", router_of(p));
  if (are_few)
    return run("choose", kernels_.choose_experts, ChooseExpertsParams{route, sort, gather});
  run("route", kernels_.route, route);
  run("sort rows", kernels_.sort_rows, sort);
  run("gather rows", kernels_.gather_rows, gather);
}

Activation Operations::expert_outputs(const LayerPass& p) {
  const LayerActivations& at = p.at;
  const int first = shard_.first_expert(p.spec, shard_.rank);
  const int32_t* begin = at.expert_begin + first;
  const int64_t pairs = rows_ * p.spec.experts->routing.chosen;
  run("experts gated", kernels_.expert_gated_matmul,
      ExpertGatedMatmulParams{.each = {.x = at.expert_inputs,
                                       .gate_up = p.w.expert_gate_up,
                                       .rows = pairs,
                                       .gate_bias = p.w.expert_gate_bias,
                                       .up_bias = p.w.expert_up_bias,
                                       .out = at.expert_gated,
                                       .scratch = ws_.blocks_scratch.data(),
                                       .curve = p.spec.experts->curve},
                              .begin = begin,
                              .matmul = kernels_.gated_matmul});
  run("experts down", kernels_.expert_matmul,
      ExpertMatmulParams{.each = {.x = at.expert_gated,
                                  .w = p.w.expert_down,
                                  .rows = pairs,
                                  .split_k = 1,
                                  .bias = p.w.expert_down_bias,
                                  .accumulate = false,
                                  .y = static_cast<float*>(at.expert_outputs.data),
                                  .y_stride = at.expert_outputs.stride,
                                  .scratch = ws_.blocks_scratch.data()},
                         .begin = begin,
                         .matmul = kernels_.matmul});
  return group_.size() == 1 ? at.expert_outputs : gather_experts(p);
}

// Every rank brings its experts' outputs, rounded, in a piece as long as the longest: where all
// ranks route alike they know each other's.
Activation Operations::gather_experts(const LayerPass& p) {
  const LayerActivations& at = p.at;
  Stream& stream = *model_.execution.stream;
  std::vector<int32_t> begin(static_cast<size_t>(shard_.expert_places(p.spec)) + 1);
  stream.download(begin.data(), at.expert_begin, begin.size() * sizeof(int32_t));
  stream.wait();
  const auto first_row = [&](int rank) {
    return int64_t{begin[static_cast<size_t>(shard_.first_expert(p.spec, rank))]};
  };
  int64_t most = 0;
  for (int r = 0; r < group_.size(); ++r) most = std::max(most, first_row(r + 1) - first_row(r));
  const Activation& sent = at.expert_sent;
  const int64_t bytes = sent.stride * size_of(sent.type);
  const auto at_row = [&](const Activation& x, int64_t row) {
    return static_cast<std::byte*>(x.data) + row * bytes;
  };
  const int64_t mine = first_row(shard_.rank), count = first_row(shard_.rank + 1) - mine;
  const float* outputs = static_cast<const float*>(at.expert_outputs.data);
  run("round", kernels_.round,
      RoundParams{.x = outputs + mine * at.expert_outputs.stride,
                  .x_stride = at.expert_outputs.stride,
                  .rows_of = nullptr,
                  .rows = count,
                  .width = spec_.hidden,
                  .out = {at_row(sent, mine), sent.type, sent.stride}});
  group_.all_gather(at_row(sent, mine), most * bytes, at.expert_pieces.data, model_.execution);
  for (int r = 0; r < group_.size(); ++r) {
    const int64_t rows = first_row(r + 1) - first_row(r);
    if (r == shard_.rank || rows == 0) continue;
    stream.copy_rows(at_row(sent, first_row(r)), bytes, at_row(at.expert_pieces, r * most), bytes,
                     bytes, rows);
  }
  return sent;
}

void Operations::shared_gated_product(const LayerPass& p) {
  run("shared gated", kernels_.gated_matmul,
      GatedMatmulParams{.x = p.at.ffn_normed,
                        .gate_up = p.w.shared_gate_up,
                        .rows = rows_,
                        .gate_bias = nullptr,
                        .up_bias = nullptr,
                        .out = p.at.shared_gated,
                        .scratch = ws_.blocks_scratch.data(),
                        .next = &p.w.shared_down});
}

void Operations::shared_output(const LayerPass& p) {
  const int64_t stride = round_up(spec_.hidden, kLeafPad);
  run("shared down", kernels_.matmul,
      MatmulParams{.x = p.at.shared_gated,
                   .w = p.w.shared_down,
                   .rows = rows_,
                   .split_k = plan_.split_k(shard_.shared_split_k(p.spec), p.w.shared_down.k),
                   .bias = nullptr,
                   .accumulate = false,
                   .y = p.at.shared,
                   .y_stride = stride,
                   .scratch = ws_.blocks_scratch.data()});
  if (group_.size() > 1) group_.tree_all_reduce(p.at.shared, rows_ * stride, model_.execution);
}

bool Operations::would_overwrite(const CombineParams& sum, const Activation& out, int64_t bytes) {
  const auto* begin = static_cast<const std::byte*>(out.data);
  const auto is_inside = [&](const void* data) {
    const auto* at = static_cast<const std::byte*>(data);
    return begin <= at && at < begin + bytes;
  };
  const auto* y = static_cast<const std::byte*>(sum.y.data);
  const int64_t of_y = sum.rows * sum.chosen * sum.y.stride * size_of(sum.y.type);
  return is_inside(y) || (y <= begin && begin < y + of_y) || is_inside(sum.place) ||
         is_inside(sum.weights) || is_inside(sum.shared) || is_inside(sum.gate);
}

void Operations::combine(const LayerPass& p, const Activation& outputs) {
  settle();
  const ExpertsSpec& experts = *p.spec.experts;
  const int32_t count = experts.routing.experts;
  const CombineParams sum{.y = outputs,
                          .rounds = outputs.type != p.at.expert_inputs.type,
                          .place = p.at.expert_place,
                          .weights = p.at.expert_weights,
                          .chosen = experts.routing.chosen,
                          .shared = p.at.shared,
                          .shared_stride = round_up(spec_.hidden, kLeafPad),
                          .gate = experts.shared_gate ? p.at.router + count : nullptr,
                          .gate_stride = p.w.router.n,
                          .rows = rows_,
                          .width = spec_.hidden,
                          .hidden = ws_.hidden.data(),
                          .scale = spec_.residual_scale,
                          .by_place = model_.arithmetic.is_baseline && model_.device().is_host()};
  if (kernels_.combine_norm && !model_.arithmetic.is_baseline) {
    waiting_ = CombineNormParams{.sum = sum, .next = nullptr, .eps = spec_.norm_eps, .out = {}};
    if (hooks_.wants_hidden()) settle();
    return;
  }
  run("combine", kernels_.combine, sum);
  round_residual();
}

}  // namespace invar
