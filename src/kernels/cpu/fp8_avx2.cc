// Products of e4m3 numbers (numerics 2.2) by integers: a lane is an output. A chain begins at +0
// and has four steps at most, so nothing in it is NaN, infinite, subnormal or too large.
#include <immintrin.h>

#include "kernels/cpu/panel_product.h"
// in this order
#include "kernels/cpu/vec16_avx2.h"
// after it
#include "kernels/cpu/vec16_math.h"
// after it
#include "kernels/cpu/product_end_inl.h"
// after it
#include "kernels/cpu/run_trees_inl.h"

namespace invar::cpu {

namespace {

constexpr int64_t kGroup = 128;  // columns that share a scale
constexpr int kFractionBits = 13;
constexpr int32_t kNone = -1000;  // the exponent of a zero

// An e4m3 number: a signed significand below 16 and the exponent of its last place but 3.
struct Parts {
  int32_t significand, exponent;
};
inline Parts parts_of(uint8_t x) {
  const int32_t field = x >> 3 & 15, fraction = x & 7;
  const int32_t magnitude = field ? fraction + 8 : fraction;
  return {x & 0x80 ? -magnitude : magnitude, magnitude ? (field ? field : 1) - 7 : kNone};
}

// 16 outputs' elements of a column.
struct Column {
  alignas(64) int32_t significand[16];
  alignas(64) int32_t exponent[16];
};

// Columns [first, first + count) of a panel.
void split_columns(const uint8_t* panel, int64_t first, int64_t count, Column* out) {
  for (int64_t i = 0; i < count; ++i) {
    // Of each output 8 bytes stand side by side, the even ones first.
    const int64_t column = first + i;
    const uint8_t* numbers = panel + column / 8 * 128 + column % 2 * 4 + column % 8 / 2;
    for (int n = 0; n < 16; ++n) {
      const Parts parts = parts_of(numbers[8 * n]);
      out[i].significand[n] = parts.significand;
      out[i].exponent[n] = parts.exponent;
    }
  }
}

// |x| * 2^-shift truncated, with the sign of x.
inline int32_t shifted(int32_t magnitude, int32_t is_negative, int32_t shift) {
  const int32_t kept = magnitude >> (shift < 31 ? shift : 31);
  return is_negative ? -kept : kept;
}
inline int32_t magnitude_of(int32_t x) {
  return x < 0 ? -x : x;
}

// One step of 16 chains with up to 32 columns.
void step(const uint8_t* x, const Column* w, int64_t count, float* acc) {
  alignas(64) int32_t bits[16], largest[16], sum[16];
  __builtin_memcpy(bits, acc, sizeof bits);
  for (int n = 0; n < 16; ++n) largest[n] = bits[n] ? (bits[n] >> 23 & 0xff) - 127 : kNone;
  Parts row[kLeaf];
  for (int64_t k = 0; k < count; ++k) {
    row[k] = parts_of(x[k]);
    for (int n = 0; n < 16; ++n) {
      const int32_t exponent = row[k].exponent + w[k].exponent[n];
      largest[n] = exponent > largest[n] ? exponent : largest[n];
    }
  }
  // In units of 2^(largest - 13): 23 - 13 bits of an accumulator go, a product has 6.
  for (int n = 0; n < 16; ++n) {
    const int32_t exponent = (bits[n] >> 23 & 0xff) - 127;
    sum[n] = bits[n] ? shifted((bits[n] & 0x7fffff) | 0x800000, bits[n] < 0,
                               largest[n] - exponent + 23 - kFractionBits)
                     : 0;
  }
  for (int64_t k = 0; k < count; ++k)
    for (int n = 0; n < 16; ++n) {
      const int32_t product = row[k].significand * w[k].significand[n];
      const int32_t shift = largest[n] - row[k].exponent - w[k].exponent[n];
      sum[n] +=
          shifted(magnitude_of(product) << (kFractionBits - 6), product < 0, product ? shift : 0);
    }
  // Exact in f32; what is behind 13 bits of its fraction goes, toward zero.
  for (int n = 0; n < 16; ++n) {
    const float whole = static_cast<float>(sum[n]);
    const uint32_t kept = __builtin_bit_cast(uint32_t, whole) & ~0x3ffu;
    const int32_t unit = sum[n] ? largest[n] - kFractionBits + 127 : 0;
    acc[n] = __builtin_bit_cast(float, kept) *
             __builtin_bit_cast(float, static_cast<uint32_t>(unit) << 23);
  }
}

class Fp8Product {
 public:
  explicit Fp8Product(const PanelProduct& p)
      : p_(p),
        run_(p.leaves * kLeaf / p.split_k),
        row_scales_(ceil_div(p.leaves * kLeaf, kGroup) + p.split_k - 1) {}

  void run() {
    const int64_t together = p_.out ? 2 : 1;  // a gate panel and its up panel
    for (int64_t row = 0; row < p_.rows; row += kRows)
      for (int64_t panel = 0; panel < p_.panels; panel += together) {
        const int64_t rows = smaller(kRows, p_.rows - row);
        dots(row, rows, panel, together);
        write(row, rows, panel);
      }
  }

 private:
  static constexpr int64_t kRows = 16;

  void dots(int64_t row, int64_t rows, int64_t panel, int64_t panels) {
    trees_.start();
    for (int r = 0; r < p_.split_k; ++r) {
      float* sums = trees_.next();
      for (int64_t q = 0; q < panels; ++q) add_run(row, rows, panel + q, r, sums + q * rows * 16);
      trees_.add(r, rows * panels);
    }
  }

  // The groups of run r, ascending: sums [row][16].
  void add_run(int64_t row, int64_t rows, int64_t panel, int r, float* sums) {
    const char* unit = static_cast<const char*>(p_.w) + panel * p_.panel_bytes;
    for (int64_t t = 0; t < rows; ++t) store(sums + t * 16, splat(0.0f));
    const int64_t end = (r + 1) * run_;
    for (int64_t first = r * run_, last; first < end; first = last) {
      last = smaller((first / kGroup + 1) * kGroup, end);
      split_columns(reinterpret_cast<const uint8_t*>(unit), first, last - first, columns_);
      const Vec16 scale =
          load(reinterpret_cast<const float*>(unit + p_.scales) + first / kGroup * 16);
      for (int64_t t = 0; t < rows; ++t) {
        const RunScale& own = p_.x_scales[(row + t) * row_scales_ + first / kGroup + r];
        const auto* x = static_cast<const uint8_t*>(p_.x) + (row + t) * p_.x_stride + first;
        alignas(64) float chain[16] = {};
        for (int64_t k = 0; k < last - first; k += kLeaf)
          step(x + k, columns_ + k, smaller(kLeaf, last - first - k), chain);
        store(sums + t * 16, fma(load(chain), splat(own.scale) * scale, load(sums + t * 16)));
      }
    }
  }

  void write(int64_t row, int64_t rows, int64_t panel) {
    const float* dot = trees_.dots();
    for (int64_t t = 0; t < rows; ++t, dot += 16)
      if (p_.out)
        write_gated(p_, row + t, panel, load(dot), load(dot + rows * 16));
      else
        write_plain(p_, row + t, panel, load(dot));
  }

  const PanelProduct& p_;
  const int64_t run_, row_scales_;  // columns; of a row
  Column columns_[kGroup];
  RunTrees<kRows, 2> trees_;
};

}  // namespace

void fp8_product_avx2(const PanelProduct& p) {
  Fp8Product(p).run();
}

}  // namespace invar::cpu
