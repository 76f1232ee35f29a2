// Matrix products: orders::dot of numerics 1 and 2, one output at a time.
#include <algorithm>

#include "base/check.h"
#include "kernels/block_places.h"
#include "kernels/reference/reference.h"
#include "numerics/math.h"

namespace invar::reference {

namespace {

constexpr int64_t kMaxInner = 1 << 16;

// Output `output` of a packed matrix as a row of its own.
template <typename T>
struct Column {
  T inner[kMaxInner];
  Column(const Matrix& w, int64_t output) {
    if constexpr (std::is_same_v<T, bf16_t>)
      if (storage_of(w.type).has_blocks()) {
        read_blocks(w, output);
        return;
      }
    const T* data = static_cast<const T*>(w.data);
    for (int64_t k = 0; k < w.k; ++k)
      inner[k] = data[std::is_same_v<T, bf16_t> ? packed_index_bf16(output, k, w.k)
                                                : packed_index_f32(output, k, w.k)];
  }

 private:
  void read_blocks(const Matrix& w, int64_t output) {
    const BlockPlaces places(w);
    for (int64_t b = 0; b < places.row_blocks(); ++b)
      places.read(w.data, output, b, inner + b * places.block());
  }
};

// Calls use(t, dot of activation row t and output `output`) for every row.
template <Order order, typename Use>
void dot_rows(const Activation& x, int64_t rows, const Matrix& w, int64_t output, int split_k,
              Use use) {
  if (storage_of(w.type).element == DType::bf16) {
    const Column<bf16_t> column(w, output);
    const bf16_t* row = static_cast<const bf16_t*>(x.data);
    for (int64_t t = 0; t < rows; ++t, row += x.stride)
      use(t, orders::dot(order, row, column.inner, w.k, split_k));
  } else {
    const Column<float> column(w, output);
    const float* row = static_cast<const float*>(x.data);
    for (int64_t t = 0; t < rows; ++t, row += x.stride)
      use(t, orders::dot(row, column.inner, w.k, split_k));
  }
}

void check_types(const Activation& x, const Matrix& w, Order order) {
  CHECK(x.type == storage_of(w.type).element, "activations and weights of a product have one type");
  CHECK(order == Order::portable || x.type == DType::bf16,
        "the orders but portable are defined for bf16");
  CHECK(w.k <= kMaxInner, "inner size beyond what the reference holds");
}

}  // namespace

template <Order order>
void matmul(const MatmulParams& p, const Execution& on) {
  check_types(p.x, p.w, order);
  const auto [begin, end] = on.share.of(p.w.n, kPanelWidth);
  for (int64_t n = begin; n < end; ++n)
    dot_rows<order>(p.x, p.rows, p.w, n, p.split_k, [&](int64_t t, float y) {
      if (p.bias) y = y + p.bias[n];
      float& out = p.y[t * p.y_stride + n];
      out = p.accumulate ? out + y : y;
    });
}

template <Order order>
void extend_matmul(const MatmulParams& p, const Execution& on) {
  check_types(p.x, p.w, order);
  CHECK(p.split_k == 1 && !p.bias && !p.accumulate && p.w.type == DType::bf16,
        "what a chain that goes on can have");
  const auto [begin, end] = on.share.of(p.w.n, kPanelWidth);
  for (int64_t n = begin; n < end; ++n) {
    const Column<bf16_t> column(p.w, n);
    const bf16_t* row = static_cast<const bf16_t*>(p.x.data);
    for (int64_t t = 0; t < p.rows; ++t, row += p.x.stride) {
      float& y = p.y[t * p.y_stride + n];
      y = orders::extend_chain(order, row, column.inner, p.w.k, y) + 0.0f;
    }
  }
}

template <Order order>
void gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  kept_gated_matmul<order>({p, nullptr}, on);
}

template <Order order>
void kept_gated_matmul(const KeptGatedMatmulParams& kept, const Execution& on) {
  const GatedMatmulParams& p = kept.product;
  check_types(p.x, p.gate_up, order);
  const int64_t width = p.gate_up.n;
  const auto [begin, end] = on.share.of(round_up(width, kLeafPad), kPanelWidth);
  const auto store = [&](int64_t t, int64_t f, float y) {
    if (p.out.type == DType::bf16)
      static_cast<bf16_t*>(p.out.data)[t * p.out.stride + f] = f32_to_bf16(y);
    else
      static_cast<float*>(p.out.data)[t * p.out.stride + f] = y;
  };
  const Matrix& w = p.gate_up;
  for (int64_t f = begin; f < end; ++f) {
    if (f >= width) {  // pad columns
      for (int64_t t = 0; t < p.rows; ++t) store(t, f, 0.0f);
      continue;
    }
    const int64_t gate = f / 16 * 32 + f % 16, up = gate + 16;  // interleaved panels
    for (int64_t t0 = 0; t0 < p.rows; t0 += 64) {
      const int64_t count = std::min<int64_t>(64, p.rows - t0);
      float g[64];
      Activation x = p.x;
      x.data = static_cast<char*>(x.data) + t0 * x.stride * size_of(x.type);
      const auto keep = [&](int64_t t, int64_t column, float y) {
        if (kept.dots) kept.dots[(t0 + t) * 2 * round_up(width, kPanelWidth) + column] = y;
      };
      dot_rows<order>(x, count, w, gate, 1, [&](int64_t t, float y) { keep(t, gate, g[t] = y); });
      dot_rows<order>(x, count, w, up, 1, [&](int64_t t, float u) {
        keep(t, up, u);
        float gate_t = g[t];
        if (p.gate_bias) gate_t = gate_t + p.gate_bias[f];
        if (p.up_bias) u = u + p.up_bias[f];
        store(t0 + t, f, math::gated(p.curve, gate_t, u));
      });
    }
  }
}

template void matmul<Order::portable>(const MatmulParams&, const Execution&);
template void matmul<Order::hopper>(const MatmulParams&, const Execution&);
template void extend_matmul<Order::portable>(const MatmulParams&, const Execution&);
template void extend_matmul<Order::hopper>(const MatmulParams&, const Execution&);
template void kept_gated_matmul<Order::portable>(const KeptGatedMatmulParams&, const Execution&);
template void kept_gated_matmul<Order::hopper>(const KeptGatedMatmulParams&, const Execution&);
template void gated_matmul<Order::portable>(const GatedMatmulParams&, const Execution&);
template void gated_matmul<Order::hopper>(const GatedMatmulParams&, const Execution&);
template void matmul<Order::pair>(const MatmulParams&, const Execution&);
template void gated_matmul<Order::pair>(const GatedMatmulParams&, const Execution&);

namespace {

// The same function of the order that is asked for.
template <typename Function>
Function of_order(Order order, Function portable, Function hopper, Function pair) {
  return order == Order::portable ? portable : order == Order::hopper ? hopper : pair;
}

}  // namespace

Kernels table(Order order) {
  return {.name = "scalar",
          .order = order,
          .embed = embed,
          .rms_norm = rms_norm,
          .layer_norm = layer_norm,
          .matmul =
              of_order(order, matmul<Order::portable>, matmul<Order::hopper>, matmul<Order::pair>),
          .gated_matmul = of_order(order, gated_matmul<Order::portable>,
                                   gated_matmul<Order::hopper>, gated_matmul<Order::pair>),
          .quantise = quantise,
          .int8_matmul = int8_matmul,
          .int8_gated_matmul = int8_gated_matmul,
          .quantise_fp8 = quantise_fp8,
          .fp8_matmul = fp8_matmul,
          .fp8_gated_matmul = fp8_gated_matmul,
          .curve = curve,
          .rotate_heads = rotate_heads,
          .gate_output = gate_output,
          .qkv = qkv,
          .qkv_product = nullptr,
          .attention = of_order(order, attention<Order::portable>, attention<Order::hopper>,
                                attention<Order::pair>),
          .partial_attention =
              of_order(order, partial_attention<Order::portable>, partial_attention<Order::hopper>,
                       partial_attention<Order::pair>),
          .round = round,
          .add = add,
          .add_norm = add_norm,
          .add_silu = add_silu,
          .scale_logits = scale_logits,
          .copy_slots = copy_slots,
          .store_slots = store_slots,
          .load_slots = load_slots,
          .copy_stored = copy_stored,
          .round_in_place = round_in_place,
          .log_sum_exp = log_sum_exp,
          .heads_matmul = heads_matmul,
          .place_latent = place_latent,
          .route = route,
          .sort_rows = sort_rows,
          .gather_rows = gather_rows,
          .weigh_rows = weigh_rows,
          .place_values = place_values,
          .gate_inputs = gate_inputs,
          .scale_rows = scale_rows,
          .expert_matmul = expert_matmul,
          .expert_gated_matmul = expert_gated_matmul,
          .combine = combine,
          .combine_norm = combine_norm,
          .sample = sample,
          .hash_logits = hash_logits,
          .copy_cells = copy_cells,
          .store_index = store_index,
          .index_scores = of_order(order, index_scores<Order::portable>,
                                   index_scores<Order::hopper>, index_scores<Order::pair>),
          .choose_slots = choose_slots,
          .gather_slots = gather_slots,
          .short_conv = short_conv,
          .recurrent_gates = recurrent_gates,
          .recurrent_keys = recurrent_keys,
          .recurrence = of_order(order, recurrence<Order::portable>, recurrence<Order::hopper>,
                                 recurrence<Order::pair>),
          .gated_norm = gated_norm,
          .adapter_shrink = adapter_shrink,
          .adapter_round = adapter_round,
          .adapter_expand = adapter_expand,
          .add_bias = add_bias,
          .gate_pairs = gate_pairs};
}

}  // namespace invar::reference
