// The sum of the experts that a row went through (numerics 7, step 6), and where it goes.
#include "model/parts/experts.h"

namespace invar {

// out = the sum of each row's experts' outputs
void Experts::sum_outputs(const PartPass& p, const Activations& at, const Activation& outputs,
                          float* out) const {
  const int64_t width = expert_width();
  p.ops.stream().clear(out, static_cast<size_t>(p.rows * width) * sizeof(float));
  p.ops.run("combine", p.ops.kernels().combine,
            CombineParams{.y = outputs,
                          .rounds = outputs.type != at.inputs.type,
                          .place = at.place,
                          .weights = at.weights,
                          .chosen = spec_.routing.chosen,
                          .shared = nullptr,
                          .shared_stride = 0,
                          .gate = nullptr,
                          .gate_stride = 0,
                          .rows = p.rows,
                          .width = width,
                          .hidden = out,
                          .scale = 1,
                          .by_place = p.ops.is_host_baseline()});
}

// h = h + norm(what the dense network left + norm(the sum of its experts' outputs))
void Experts::combine_beside(const PartPass& p, const Weights& w, const Activations& at,
                             const Activation& outputs) const {
  const int64_t d = model_.hidden;
  sum_outputs(p, at, outputs, at.sum);
  p.ops.norm_part(at.sum, d, d, w.out_norm, {at.sum, DType::f32, d}, true);
  p.ops.run("add", p.ops.kernels().add,
            AddParams{.x = at.sum,
                      .x_stride = d,
                      .bias = nullptr,
                      .rows = p.rows,
                      .width = d,
                      .y = p.ops.beside()});
  p.ops.add_normed(p.ops.beside(), d, w.sum_norm);
}

// h = h + (up(the sum of its experts' outputs) + the shared one's)
void Experts::combine_latents(const PartPass& p, const Weights& w, const Activations& at,
                              const Activation& outputs) const {
  const int64_t d = model_.hidden, own = expert_width();
  sum_outputs(p, at, outputs, at.narrow);
  p.ops.round_part(at.narrow, own, own, at.latent);
  p.ops.product("latent up", at.latent, w.latent_up, nullptr, p.rows, at.wide, d);
  if (at.shared)
    p.ops.run("add", p.ops.kernels().add,
              AddParams{.x = at.shared,
                        .x_stride = round_up(d, kLeafPad),
                        .bias = nullptr,
                        .rows = p.rows,
                        .width = d,
                        .y = at.wide});
  p.ops.add_normed(at.wide, d, nullptr);
}

// h = h + the sum of its experts' outputs
void Experts::combine(const PartPass& p, const Weights& w, const Activations& at,
                      const Activation& outputs) const {
  p.ops.add_combined({.y = outputs,
                      .rounds = outputs.type != at.inputs.type,
                      .place = at.place,
                      .weights = at.weights,
                      .chosen = spec_.routing.chosen,
                      .shared = at.shared,
                      .shared_stride = round_up(model_.hidden, kLeafPad),
                      .gate = spec_.shared_gate ? at.router + spec_.routing.experts : nullptr,
                      .gate_stride = w.router.n,
                      .rows = p.rows,
                      .width = model_.hidden,
                      .hidden = p.hidden,
                      .scale = model_.residual_scale,
                      .by_place = p.ops.is_host_baseline()});
}

}  // namespace invar
