#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace invar::cpu {

namespace {

// Rows and panels of one share. The cut is the one whose largest share is smallest. Among equals it
// is the one with the fewest parts of rows, since every row of a panel uses the same memory; but
// with many rows (kRowSharesFrom) the one with the most, as many as most_row_parts says.
struct Share {
  Part::Run rows, panels;
  bool is_empty() const { return rows.begin == rows.end || panels.begin == panels.end; }
};

// `grain`: panels that stay together. `stays`: what comes next of a row is computed by whoever has
// it now, as in sums that are added to the residual stream; then there may be parts of few rows.
Share share_of(int64_t rows, int64_t panels, int64_t grain, bool stays, Part part) {
  const int64_t groups = (panels + grain - 1) / grain;
  const int64_t row_tiles = std::max<int64_t>((rows + kRowGrain - 1) / kRowGrain, 1);
  const auto largest = [&](int64_t row_parts) {
    const int64_t panel_parts = part.count / row_parts;
    return (row_tiles + row_parts - 1) / row_parts * ((groups + panel_parts - 1) / panel_parts);
  };
  const int64_t most = std::min(stays ? part.count : most_row_parts(rows, part.count), row_tiles);
  int row_parts = 1;
  for (int parts = 2; parts <= most; ++parts)
    if (largest(parts) < largest(row_parts) + (rows >= kRowSharesFrom ? 1 : 0)) row_parts = parts;
  const int panel_parts = part.count / row_parts;
  if (part.index >= row_parts * panel_parts) return {{0, 0}, {0, 0}};
  return {Part{part.index / panel_parts, row_parts}.of(rows, kRowGrain),
          Part{part.index % panel_parts, panel_parts}.of(panels, grain)};
}

// The operands of a share; the caller adds what becomes of the dots.
PanelProduct operands(const Activation& x, const Matrix& w, int split_k, const Share& share) {
  CHECK(x.type == storage_of(w.type).element, "activations and weights of a product have one type");
  PanelProduct p{};
  p.f32 = x.type == DType::f32;
  p.stored = w.type;
  p.scales = w.scales_at();
  p.x_stride = x.stride * size_of(x.type);
  p.x = static_cast<const char*>(x.data) + share.rows.begin * p.x_stride;
  if (x.scales) p.x_scales = x.scales + share.rows.begin * scales_of_row(w.type, w.k, split_k);
  p.rows = share.rows.end - share.rows.begin;
  p.panel_bytes = w.unit_bytes();
  p.w = static_cast<const char*>(w.data) + share.panels.begin * p.panel_bytes;
  p.panels = share.panels.end - share.panels.begin;
  p.leaves = round_up(w.k, kLeafPad) / kLeafPad;
  p.split_k = split_k;
  CHECK(split_k == 1 || w.k % (kLeafPad * split_k) == 0, "a run must hold whole leaves");
  return p;
}

// Has the first panels fetched that this share reads of the weights that come next. (What is added
// to the residual stream, and what is not, take turns.)
void set_next(PanelProduct& p, const Matrix* next, int64_t rows, bool stays, Part part) {
  if (!next || !next->data) return;
  p.next_panel_bytes = next->unit_bytes();
  const Share share = share_of(rows, next->count * next->panels(), 4, stays, part);
  p.next = static_cast<const char*>(next->data) + share.panels.begin * p.next_panel_bytes;
}

}  // namespace

void matmul(RunProduct run, const MatmulParams& m, bool extends, const Execution& on) {
  const Share share = share_of(m.rows, m.w.panels(), 4, m.accumulate, on.share);
  if (share.is_empty()) return;
  const int64_t first = share.panels.begin * kPanelWidth;
  PanelProduct p = operands(m.x, m.w, m.split_k, share);
  p.outputs = std::min(m.w.n, share.panels.end * kPanelWidth) - first;
  p.y = m.y + share.rows.begin * m.y_stride + first;
  p.y_stride = m.y_stride;
  p.bias = m.bias ? m.bias + first : nullptr;
  p.accumulate = m.accumulate;
  p.extend = extends;
  CHECK(!p.extend || (p.split_k == 1 && !p.bias && !p.accumulate),
        "what a chain that goes on can have");
  set_next(p, m.next, m.rows, !m.accumulate, on.share);
  run(p);
}

void gated_matmul(RunProduct run, const GatedMatmulParams& m, float* dots, const Execution& on) {
  const int64_t width = m.gate_up.n, columns = m.gate_up.panels() * kPanelWidth;
  const Share share = share_of(m.rows, 2 * m.gate_up.panels(), 4, false, on.share);
  if (share.is_empty()) return;
  const int64_t first = share.panels.begin / 2 * kPanelWidth, element = size_of(m.out.type);
  CHECK(m.out.type == m.x.type || m.x.scales, "the gated activation has the type of its input");
  PanelProduct p = operands(m.x, m.gate_up, 1, share);
  p.outputs = std::min(width, share.panels.end / 2 * kPanelWidth) - first;
  p.out_stride = m.out.stride * element;
  char* rows = static_cast<char*>(m.out.data) + share.rows.begin * p.out_stride;
  p.out = rows + first * element;
  p.dots_stride = 2 * columns;
  p.dots = dots ? dots + share.rows.begin * p.dots_stride + 2 * first : nullptr;
  p.gate_bias = m.gate_bias ? m.gate_bias + first : nullptr;
  p.up_bias = m.up_bias ? m.up_bias + first : nullptr;
  CHECK(m.curve != Nonlinearity::gelu, "a curve of gated products");
  p.is_gelu = m.curve == Nonlinearity::gelu_tanh;
  p.is_clamped = m.curve == Nonlinearity::clamped;
  set_next(p, m.next, m.rows, true, on.share);
  run(p);
  // Pad columns that no panel has.
  if (share.panels.end == 2 * m.gate_up.panels())
    for (int64_t t = 0; t < p.rows; ++t)
      std::memset(rows + t * p.out_stride + columns * element, 0,
                  (round_up(width, kLeafPad) - columns) * element);
}

}  // namespace invar::cpu
