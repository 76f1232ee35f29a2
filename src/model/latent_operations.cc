// The operations of latent attention (numerics 4.3).
#include "model/operations.h"
#include "model/parts/layer_pass.h"

namespace invar {

void Operations::norm_part(const float* x, int64_t stride, int64_t width, const float* weight,
                           const Activation& out, bool keeps_pad) {
  run("norm", kernels_.rms_norm,
      RmsNormParams{.x = x,
                    .x_stride = stride,
                    .rows_of = nullptr,
                    .weight = weight,
                    .eps = spec_.norm_eps,
                    .rows = rows_,
                    .width = width,
                    .out = out,
                    .keeps_pad = keeps_pad});
}

void Operations::round_part(const float* x, int64_t stride, int64_t width, const Activation& out) {
  run("round", kernels_.round,
      RoundParams{.x = x,
                  .x_stride = stride,
                  .rows_of = nullptr,
                  .rows = rows_,
                  .width = width,
                  .out = out});
}

void Operations::heads_product(const char* name, const Activation& x, int64_t x_step,
                               const Matrix& w, float* y) {
  run(name, kernels_.heads_matmul,
      HeadsMatmulParams{.each = {.x = x,
                                 .w = w,
                                 .rows = rows_,
                                 .split_k = 1,
                                 .bias = nullptr,
                                 .accumulate = false,
                                 .y = y,
                                 .y_stride = w.count * w.n,
                                 .scratch = ws_.blocks_scratch.data()},
                        .x_step = x_step,
                        .matmul = kernels_.matmul});
}

void Operations::latent_qkv(const LayerPass& p, const float* turning_queries,
                            int64_t turning_stride) {
  const LatentSpec& latent = *p.spec.attention.latent;
  const int64_t width = p.w.latent_down.n;
  run("place latent", kernels_.place_latent,
      PlaceLatentParams{.queries = p.at.latent_queries,
                        .turning_queries = turning_queries,
                        .turning_stride = turning_stride,
                        .latents = p.at.latent_narrow + width - spec_.head_dim,
                        .latent_stride = width,
                        .rows = rows_,
                        .heads = shard_.heads,
                        .rank = latent.rank,
                        .turning = latent.turning,
                        .out = products(p)});
  QkvParams rotation = rotation_of(p);
  rotation.q_norm = rotation.k_norm = nullptr;  // those norms are done
  run("rope", kernels_.qkv, rotation);
}

}  // namespace invar
