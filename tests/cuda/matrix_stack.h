#pragma once

#include "cuda_check.h"
#include "kernels/pack.h"

namespace invar {

// Single matrices or gated pairs of several experts or heads, in panels for the CPU and as the
// GPU's order reads them.
struct MatrixStack {
  Matrix host, device;
  Twin<bf16_t> panels, rows;

  MatrixStack(Device& gpu, Random& random, Order order, int64_t n, int64_t k, int64_t experts,
              int matrices)
      : host{.n = n, .k = k, .count = experts * matrices},
        device{.n = n, .k = k, .layout = cuda::kernels(order).weights, .count = host.count},
        panels(gpu, host.elements()),
        rows(gpu, device.elements()) {
    std::ranges::fill(panels.host, bf16_t{0});
    std::ranges::fill(rows.host, bf16_t{0});
    host.data = panels.host.data();
    device.data = rows.host.data();
    std::vector<bf16_t> row(static_cast<size_t>(k));
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t i = 0; i < n; ++i)
        for (int m = 0; m < matrices; ++m) {
          fill_row(random, std::span(row));
          for (const Matrix& w : {host, device}) {
            const Matrix one = w.part(e * matrices, matrices);
            pack_rows(one, row.data(), k, i, 1, {m * kPanelWidth, matrices},
                      const_cast<void*>(one.data));
          }
        }
    rows.upload();
    device.data = rows.device();
  }
};

}  // namespace invar
