// Products of integers, of e4m3 numbers and of blocks: numerics 2.1, 2.2, 2.3 and 2.5, one output
// at a time. All but those of blocks are the same in every order.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/block_places.h"
#include "kernels/reference/reference.h"
#include "numerics/block_dot.h"
#include "numerics/int8.h"
#include "numerics/math.h"

namespace invar::reference {

namespace {

// Output `output`, counted through the units of a matrix of i8.
struct Integers {
  static constexpr DType kType = DType::i8;

  Integers(const Matrix& w, int64_t output) : values(static_cast<size_t>(w.k)) {
    const int64_t outputs = w.unit_outputs(), lane = output % outputs;
    const bool panels = w.layout == WeightLayout::panels;
    const auto* unit = static_cast<const uint8_t*>(w.data) + output / outputs * w.unit_bytes();
    for (int64_t k = 0; k < w.k; ++k)
      values[k] =
          static_cast<int8_t>(panels ? unit[(k / 4 * 16 + lane) * 4 + k % 4] ^ 0x80 : unit[k]);
    std::memcpy(&scale, unit + w.scales_at() + lane * sizeof scale, sizeof scale);
  }
  float dot(const int8_t* x, const RunScale* scales, int64_t k, int split_k) const {
    return orders::int8_dot(x, scales, values.data(), scale, k, split_k);
  }
  static void quantise(const bf16_t* x, int64_t first, int64_t k, int run, int8_t* q,
                       RunScale* scales) {
    scales[run] = orders::quantise_run(x + first, k, q + first);
  }

  std::vector<int8_t> values;
  float scale;
};

// The same of a matrix of e4m3.
struct Numbers {
  static constexpr DType kType = DType::e4m3;

  Numbers(const Matrix& w, int64_t output) {
    const BlockPlaces places(w);
    for (int64_t block = 0; block < places.row_blocks(); ++block) {
      uint8_t value[orders::kFp8Group];
      uint8_t scale[sizeof(float)];
      places.read_stored(w.data, output, block, scale, value);
      values.insert(values.end(), std::begin(value), std::end(value));
      scales.push_back(blocks::f32_at(scale));
    }
  }
  float dot(const int8_t* x, const RunScale* x_scales, int64_t k, int split_k) const {
    return orders::fp8_dot(reinterpret_cast<const uint8_t*>(x), x_scales, values.data(),
                           scales.data(), k, split_k);
  }
  static void quantise(const bf16_t* x, int64_t first, int64_t k, int run, int8_t* q,
                       RunScale* scales) {
    orders::quantise_fp8_run(x + first, first, k, run, reinterpret_cast<uint8_t*>(q) + first,
                             scales);
  }

  std::vector<uint8_t> values;
  std::vector<float> scales;
};

// The same of a matrix of e4m3_row.
struct RowNumbers : Numbers {
  static constexpr DType kType = DType::e4m3_row;

  using Numbers::Numbers;
  float dot(const int8_t* x, const RunScale* x_scales, int64_t k, int split_k) const {
    return orders::fp8_row_dot(reinterpret_cast<const uint8_t*>(x), x_scales, values.data(),
                               scales[0], k, split_k);
  }
  static void quantise(const bf16_t* x, int64_t first, int64_t k, int run, int8_t* q,
                       RunScale* scales) {
    scales[run] = orders::quantise_fp8_row(x + first, k, reinterpret_cast<uint8_t*>(q) + first);
  }
};

// The same of a matrix in blocks.
struct Parts {
  static constexpr DType kType = DType::i8;

  Parts(const Matrix& w, int64_t output) : type(w.type) {
    const BlockPlaces places(w);
    const int parts = places.block() / part_size(type);
    for (int64_t block = 0; block < places.row_blocks(); ++block) {
      uint8_t values[kMaxBlockBytes], scales[kMaxBlockBytes];
      places.read_stored(w.data, output, block, scales, values);
      for (int i = 0; i < places.block(); ++i)
        integers.push_back(static_cast<int8_t>(block_integer(type, values, i)));
      for (int j = 0; j < parts; ++j) factors.push_back(block_part(type, scales, j));
    }
  }
  static bool are_in(const Matrix& w) { return part_size(w.type) > 0; }
  float dot(const int8_t* x, const RunScale* scales, int64_t k, int split_k) const {
    return orders::block_dot(
        x, scales, {part_size(type), adds_something(type), integers.data(), factors.data()}, k,
        split_k);
  }

  DType type;
  std::vector<int8_t> integers;
  std::vector<BlockPart> factors;
};

// Calls use(t, dot of activation row t and that output) for every row.
template <typename Column, typename Use>
void dot_rows(const Activation& x, int64_t rows, const Matrix& w, int64_t output, int split_k,
              Use use) {
  constexpr bool kHasParts = std::is_same_v<Column, Parts>;
  CHECK(x.type == Column::kType && (kHasParts ? Parts::are_in(w) : w.type == Column::kType),
        "a product of quantised numbers");
  const Column column(w, output);
  const int64_t scales = kHasParts ? w.k / kLeafPad : scales_of_row(Column::kType, w.k, split_k);
  const auto* row = static_cast<const int8_t*>(x.data);
  for (int64_t t = 0; t < rows; ++t, row += x.stride)
    use(t, column.dot(row, x.scales + t * scales, w.k, split_k));
}

template <typename Column>
void quantise_as(const QuantiseParams& p, const Execution& on) {
  CHECK(p.x.type == DType::bf16 && p.out.type == Column::kType, "what is quantised is bf16");
  const int64_t length = p.width / p.split_k;
  const int64_t scales = scales_of_row(Column::kType, p.width, p.split_k);
  const auto [begin, end] = on.share.of(p.rows);
  for (int64_t t = begin; t < end; ++t) {
    const bf16_t* x = static_cast<const bf16_t*>(p.x.data) + t * p.x.stride;
    int8_t* q = static_cast<int8_t*>(p.out.data) + t * p.out.stride;
    for (int r = 0; r < p.split_k; ++r)
      Column::quantise(x, r * length, length, r, q, p.out.scales + t * scales);
    std::fill(q + p.width, q + round_up(p.width, kLeafPad), int8_t{0});
  }
}

template <typename Column>
void matmul_of(const MatmulParams& p, const Execution& on) {
  const auto [begin, end] = on.share.of(p.w.n, kPanelWidth);
  for (int64_t n = begin; n < end; ++n)
    dot_rows<Column>(p.x, p.rows, p.w, n, p.split_k, [&](int64_t t, float y) {
      if (p.bias) y = y + p.bias[n];
      float& out = p.y[t * p.y_stride + n];
      out = p.accumulate ? out + y : y;
    });
}

template <typename Column>
void gated_matmul_of(const GatedMatmulParams& p, const Execution& on) {
  CHECK(p.out.type == DType::bf16, "the gated activation beside quantised numbers is bf16");
  const Matrix& w = p.gate_up;
  const bool panels = w.layout == WeightLayout::panels;
  const auto [begin, end] = on.share.of(round_up(w.n, kLeafPad), kPanelWidth);
  std::vector<float> g(static_cast<size_t>(p.rows));
  for (int64_t f = begin; f < end; ++f) {
    bf16_t* out = static_cast<bf16_t*>(p.out.data) + f;
    if (f >= w.n) {  // pad columns
      for (int64_t t = 0; t < p.rows; ++t) out[t * p.out.stride] = 0;
      continue;
    }
    const int64_t gate = panels ? f / 16 * 32 + f % 16 : f;
    const int64_t up = panels ? gate + 16 : w.all_rows() + f;
    dot_rows<Column>(p.x, p.rows, w, gate, 1, [&](int64_t t, float y) { g[t] = y; });
    dot_rows<Column>(p.x, p.rows, w, up, 1, [&](int64_t t, float u) {
      float gate_t = g[t];
      if (p.gate_bias) gate_t = gate_t + p.gate_bias[f];
      if (p.up_bias) u = u + p.up_bias[f];
      out[t * p.out.stride] = f32_to_bf16(math::gated(p.curve, gate_t, u));
    });
  }
}

// Rows of bf16 beside blocks as integers.
struct IntegerRows {
  IntegerRows(const Activation& x, int64_t rows, int64_t k)
      : values(static_cast<size_t>(rows * k)), scales(static_cast<size_t>(rows * k / kLeafPad)) {
    CHECK(x.type == DType::bf16, "what becomes integers is bf16");
    for (int64_t t = 0; t < rows; ++t)
      orders::quantise_columns(static_cast<const bf16_t*>(x.data) + t * x.stride, k,
                               values.data() + t * k, scales.data() + t * k / kLeafPad);
    view = {values.data(), DType::i8, k, scales.data()};
  }
  std::vector<int8_t> values;
  std::vector<RunScale> scales;
  Activation view;
};

void matmul_by_parts(const MatmulParams& p, const Execution& on) {
  if (!Parts::are_in(p.w)) return matmul<Order::portable>(p, on);
  const IntegerRows x(p.x, p.rows, p.w.k);
  MatmulParams of_integers = p;
  of_integers.x = x.view;
  matmul_of<Parts>(of_integers, on);
}

void gated_matmul_by_parts(const GatedMatmulParams& p, const Execution& on) {
  if (!Parts::are_in(p.gate_up)) return gated_matmul<Order::portable>(p, on);
  const IntegerRows x(p.x, p.rows, p.gate_up.k);
  GatedMatmulParams of_integers = p;
  of_integers.x = x.view;
  gated_matmul_of<Parts>(of_integers, on);
}

}  // namespace

void override_blocks(Kernels& kernels) {
  kernels.matmul = matmul_by_parts;
  kernels.gated_matmul = gated_matmul_by_parts;
  kernels.qkv_product = nullptr;  // rows become integers once, not for each head
}

void quantise(const QuantiseParams& p, const Execution& on) {
  quantise_as<Integers>(p, on);
}
void int8_matmul(const MatmulParams& p, const Execution& on) {
  matmul_of<Integers>(p, on);
}
void int8_gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  gated_matmul_of<Integers>(p, on);
}

void quantise_fp8(const QuantiseParams& p, const Execution& on) {
  p.out.type == DType::e4m3_row ? quantise_as<RowNumbers>(p, on) : quantise_as<Numbers>(p, on);
}
void fp8_matmul(const MatmulParams& p, const Execution& on) {
  p.w.type == DType::e4m3_row ? matmul_of<RowNumbers>(p, on) : matmul_of<Numbers>(p, on);
}
void fp8_gated_matmul(const GatedMatmulParams& p, const Execution& on) {
  p.gate_up.type == DType::e4m3_row ? gated_matmul_of<RowNumbers>(p, on)
                                    : gated_matmul_of<Numbers>(p, on);
}

}  // namespace invar::reference
