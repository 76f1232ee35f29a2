// Which experts a row goes through, and the rows that experts read (numerics 7, steps 1 to 3).
#include "kernels/pack.h"
#include "model/parts/experts.h"

namespace invar {

MatmulParams Experts::router_of(const PartPass& p, const Weights& w, const Activations& at) const {
  return {.x = spec_.is_beside ? at.routed : at.normed,
          .w = w.router,
          .rows = p.rows,
          .split_k = p.ops.split_k(1, w.router.k),
          .bias = w.router_bias,
          .accumulate = false,
          .y = at.router,
          .y_stride = w.router.n,
          .scratch = p.ops.blocks_scratch()};
}

// Whether the norm, the router and the choice are one operation: of few rows, where there is a
// kernel for it.
bool Experts::routes_at_once(const PartPass& p, const Weights& w) const {
  return p.ops.kernels().choose_experts && p.rows * spec_.routing.chosen <= kFewPairs &&
         !spec_.is_beside && spec_.latent == 0 && p.ops.at_once().route_experts &&
         p.ops.is_settled() && w.norm && w.router.type == DType::bf16;
}

void Experts::norm_rows(const PartPass& p, const Weights& w, const Activations& at) const {
  p.ops.norm(p.hidden, w.norm, at.normed);
  if (spec_.is_beside) p.ops.norm(p.hidden, w.router_norm, at.routed);
  if (spec_.latent > 0) make_latents(p, w, at);
}

// Whether the shared expert's products go beside the choice of the others, which leaves most of a
// GPU idle. What they read must be there: the choice may make the norm for itself.
bool Experts::forks_shared(const PartPass& p, const Weights& w, bool at_once) const {
  return spec_.shared_width > 0 && spec_.is_gated &&
         p.ops.may_fork({&w.shared_gate_up, &w.shared_down}) &&
         (!at_once || p.ops.joins_norm(w.shared_gate_up, w.norm));
}

void Experts::fork_shared(const PartPass& p, const Weights& w, const Activations& at,
                          bool at_once) const {
  p.ops.fork([&] {
    if (at_once) p.ops.norm_before(w.shared_gate_up, p.hidden, w.norm, at.normed, nullptr);
    shared_output(p, w, at);
  });
}

// Which experts each row goes through, and the rows that those here read, expert by expert.
void Experts::route(const PartPass& p, const Weights& w, const Activations& at,
                    bool at_once) const {
  const Routing& how = spec_.routing;
  const Kernels& kernels = p.ops.kernels();
  const RouteParams route{.how = how,
                          .logits = at.router,
                          .stride = w.router.n,
                          .bias = w.choice_bias,
                          .rows = p.rows,
                          .ids = at.chosen,
                          .weights = at.weights,
                          .given = p.ops.given_experts(layer_),
                          .scales = w.expert_scale};
  const SortRowsParams sort{.ids = at.chosen,
                            .expert_places = w.places,
                            .rows = p.rows,
                            .chosen = how.chosen,
                            .experts = places_,
                            .begin = at.begin,
                            .place = at.place,
                            .rows_of = at.rows};
  const int first = first_expert(shard_.rank);
  const GatherRowsParams gather{.x = spec_.latent > 0 ? at.latent : at.normed,
                                .width = expert_width(),
                                .rows_of = at.rows,
                                .begin = at.begin + first,
                                .experts = first_expert(shard_.rank + 1) - first,
                                .most_rows = p.rows * how.chosen,
                                .out = at.inputs};
  if (at_once)
    return p.ops.run("norm, router, choose", p.ops.at_once().route_experts,
                     RouteExpertsParams{.norm = p.ops.norm_of(p.hidden, w.norm, at.normed),
                                        .router = router_of(p, w, at),
                                        .choose = {route, sort, gather}});
  p.ops.run_product("router", router_of(p, w, at));
  if (kernels.choose_experts && gather.most_rows <= kFewPairs)
    return p.ops.run("choose", kernels.choose_experts, ChooseExpertsParams{route, sort, gather});
  p.ops.run("route", kernels.route, route);
  if (p.ops.at_once().sort_and_gather && gather.most_rows <= kMostPairs) {
    p.ops.run("sort, gather", p.ops.at_once().sort_and_gather, SortAndGatherParams{sort, gather});
  } else {
    p.ops.run("sort rows", kernels.sort_rows, sort);
    p.ops.run("gather rows", kernels.gather_rows, gather);
  }
  if (spec_.weighs_inputs)
    p.ops.run(
        "weigh rows", kernels.weigh_rows,
        WeighRowsParams{
            .of = gather, .place = at.place, .weights = at.weights, .pairs = gather.most_rows});
}

}  // namespace invar
