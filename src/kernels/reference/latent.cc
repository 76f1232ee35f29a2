// Latent attention, numerics 4.3: a product for each head, and queries and keys put together.
#include <algorithm>

#include "base/check.h"
#include "kernels/reference/reference.h"

namespace invar::reference {

void heads_matmul(const HeadsMatmulParams& p, const Execution& on) {
  CHECK(p.each.split_k == 1 && !p.each.accumulate && !p.each.bias,
        "what a head's product can have");
  const auto [begin, end] = on.share.of(p.each.w.count);
  for (int64_t h = begin; h < end; ++h) {
    MatmulParams one = p.each;
    one.x.data = static_cast<char*>(p.each.x.data) + h * p.x_step * size_of(p.each.x.type);
    one.w = p.each.w.part(h, 1);
    one.y = p.each.y + h * p.each.w.n;
    p.matmul(one, on.of({}));
  }
}

void place_latent(const PlaceLatentParams& p, const Execution& on) {
  const int64_t e = p.rank + p.turning, half = e / 2, pairs = p.turning / 2, low = half - pairs;
  // The turning elements begin the two halves, the latent fills them.
  const auto put = [&](const float* latent, const float* turning, float* out) {
    std::copy_n(turning, pairs, out);
    std::copy_n(latent, low, out + pairs);
    std::copy_n(turning + pairs, pairs, out + half);
    std::copy_n(latent + low, p.rank - low, out + half + pairs);
  };
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    float* out = p.out + t * (p.heads + 2) * e;
    for (int64_t h = 0; h < p.heads; ++h)
      put(p.queries + (t * p.heads + h) * p.rank,
          p.turning_queries + t * p.turning_stride + h * p.turning, out + h * e);
    const float* latent = p.latents + t * p.latent_stride;
    put(latent, latent + p.rank, out + p.heads * e);
    float* value = out + (p.heads + 1) * e;
    std::copy_n(latent, p.rank, value);
    std::fill_n(value + p.rank, p.turning, 0.0f);
  }
}

}  // namespace invar::reference
