// Products of e4m3 numbers, in groups or by rows (numerics 2.2, 2.5); a lane is an output. A step
// truncates its addends toward zero at a place that its largest one sets: here a sum does that, of
// each addend with a number so large that its last place is that one, while the processor rounds
// toward zero. Addends above zero and below meet numbers of their own sign. A chain begins at +0
// and adds products that are below 2^18 and multiples of 2^-18, so nothing in it is NaN, infinite
// or subnormal. Included after a vec16 header, vec16_math.h, product_end_inl.h and run_trees_inl.h.
#pragma once

#include <immintrin.h>
#include <cstdint>

namespace invar::cpu {

namespace {

constexpr int64_t kGroup = 128;           // columns that share a scale, or are split together
constexpr unsigned kTowardZero = 0x6000;  // of MXCSR

// Numbers of a byte each, in the lowest bits of lanes, and their exponents as powers of two, which
// for subnormal ones is that of the smallest normal one, and for zeros 0.
struct Numbers {
  Vec16 value, power;
};
inline Numbers numbers_of(Bits16 x) {
  const Bits16 magnitude = x & splat_bits(0x7f);
  const Mask16 is_normal = is_greater_signed(magnitude, splat_bits(7));
  const Mask16 is_zero = is_greater_signed(splat_bits(1), magnitude);
  const Bits16 normal = (magnitude << 20) + splat_bits(0x3c000000);
  const Vec16 subnormal = from_integer(magnitude) * splat(0x1p-9f);
  const Vec16 power = select(is_normal, value_of(normal & splat_bits(0x7f800000)), splat(0x1p-6f));
  const Vec16 absolute = select(is_normal, value_of(normal), subnormal);
  return {value_of(bits_of(absolute) | (x & splat_bits(0x80)) << 24),
          select(is_zero, splat(0.0f), power)};
}

// A column's elements of 16 outputs.
struct Column {
  alignas(64) float part[2][16];  // of those above zero, or else 0; of those below
  alignas(64) float power[16];
};
// Elements of a row.
struct RowColumns {
  alignas(64) float value[kGroup];
  alignas(64) float power[kGroup];
  alignas(64) uint32_t is_negative[kGroup];
};

// Columns [first, first + count) of a panel, whole leaves.
inline void split_columns(const char* panel, int64_t first, int64_t count, Column* out) {
  // 8 bytes of each output stand side by side, the even ones first.
  for (int64_t i = 0; i < count; i += 8) {
    const char* eight = panel + (first + i) * 16;
    const Vec16 a = value_of(load_bits(eight)), b = value_of(load_bits(eight + 64));
    const Bits16 fours[2] = {bits_of(even_lanes(a, b)),
                             bits_of(even_lanes(swap_neighbours(a), swap_neighbours(b)))};
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      const Numbers w = numbers_of(fours[c % 2] >> c / 2 * 8);
      Column& column = out[i + c];
      store(column.part[0], max(w.value, splat(0.0f)));
      store(column.part[1], min(w.value, splat(0.0f)));
      store(column.power, w.power);
    }
  }
}
inline void split_row(const char* x, int64_t count, RowColumns& out) {
  for (int64_t i = 0; i < count; i += 16) {
    const Bits16 bytes = load_u8(x + i);
    const Numbers numbers = numbers_of(bytes);
    store(out.value + i, numbers.value);
    store(out.power + i, numbers.power);
    store_bits(out.is_negative + i, (bytes >> 7) & splat_bits(1));
  }
}

// The sums of a step, in two parts: one alone would wait for each of its additions.
struct Sums {
  Vec16 above, below;  // zero

  void add(const RowColumns& x, int64_t k, const Column& w) {
    const Vec16 value = splat(x.value[k]);
    const uint32_t negative = x.is_negative[k];
    above = fma(value, load(w.part[negative]), above);
    below = fma(value, load(w.part[1 - negative]), below);
  }
  Vec16 from(Vec16 origin) const { return (above - origin) + (below + origin); }
};

// One step of 16 chains, whose numbers have 13 bits of fraction.
inline Vec16 step(const RowColumns& x, int64_t first, const Column* w, Vec16 acc) {
  const auto power = [&](int64_t k) { return splat(x.power[first + k]) * load(w[k].power); };
  const Vec16 zero = splat(0.0f);
  Vec16 top = value_of(bits_of(acc) & splat_bits(0x7f800000)), other_top = zero;
#pragma GCC unroll 8
  for (int64_t k = 0; k < kLeaf; k += 2) {
    top = max(power(k), top);
    other_top = max(power(k + 1), other_top);
  }
  // Its last place is 13 below the largest exponent, and stays there: all 33 addends together are
  // less than a 16th of it.
  const Vec16 origin = max(top, other_top) * splat(0x1.8p10f);
  Sums sums{origin + max(acc, zero), min(acc, zero) - origin}, others{origin, zero - origin};
#pragma GCC unroll 8
  for (int64_t k = 0; k < kLeaf; k += 2) {
    sums.add(x, first + k, w[k]);
    others.add(x, first + k + 1, w[k + 1]);
  }
  const Vec16 sum = sums.from(origin) + others.from(origin);  // exact
  return value_of(bits_of(sum) & splat_bits(0xfffffc00));
}
// Chains [row][16] go on over `count` columns. The caller has set rounding toward zero, so this is
// not inlined.
[[gnu::noinline]] inline void extend_chains(const RowColumns* x, int64_t rows, const Column* w,
                                            int64_t count, float* chains) {
  for (int64_t t = 0; t < rows; ++t) {
    Vec16 acc = load(chains + t * 16);
    for (int64_t k = 0; k < count; k += kLeaf) acc = step(x[t], k, w + k, acc);
    store(chains + t * 16, acc);
  }
}
// The group's chains to the sums, by the rows' scales and the outputs'. Rounded to nearest again.
[[gnu::noinline]] inline void add_group(const RunScale* const* own, int64_t rows,
                                        const float* scale, const float* chains, float* sums) {
  for (int64_t i = 0; i < rows * 16; i += 16)
    store(sums + i, fma(load(chains + i), splat(own[i / 16]->scale) * load(scale), load(sums + i)));
}

// A run's chains times the rows' scales and the outputs'.
inline void scale_run(const RunScale* const* own, int64_t rows, const float* scale, float* chains) {
  for (int64_t i = 0; i < rows * 16; i += 16)
    store(chains + i, load(chains + i) * (splat(own[i / 16]->scale) * load(scale)));
}

class Fp8Product {
 public:
  explicit Fp8Product(const PanelProduct& p)
      : p_(p),
        by_rows_(p.stored == DType::e4m3_row),
        run_(p.leaves * kLeaf / p.split_k),
        row_scales_(by_rows_ ? p.split_k : ceil_div(p.leaves * kLeaf, kGroup) + p.split_k - 1) {}

  void run() {
    for (int64_t row = 0; row < p_.rows; row += kRows)
      for (int64_t panel = 0; panel < p_.panels; panel += kPanels) {
        rows_ = smaller(kRows, p_.rows - row);
        dots(row, panel, smaller(kPanels, p_.panels - panel));
      }
  }

 private:
  static constexpr int64_t kRows = 16, kPanels = 4;  // even: a gate's panel and its up's

  void dots(int64_t row, int64_t panel, int64_t panels) {
    trees_.start();
    for (int r = 0; r < p_.split_k; ++r) {
      float* sums = trees_.next();
      for (int64_t i = 0; i < panels * rows_ * 16; i += 16) store(sums + i, splat(0.0f));
      const int64_t end = (r + 1) * run_;
      for (int64_t first = r * run_, last; first < end; first = last) {
        last = smaller((first / kGroup + 1) * kGroup, end);
        add_columns(row, panel, panels, r, first, last - first, sums);
      }
      if (by_rows_) scale_panels(row, panel, panels, r, sums);
      trees_.add(r, panels * rows_);
    }
    for (int64_t q = 0; q < panels; ++q) write(row, panel + q, trees_.dots() + q * rows_ * 16);
  }

  const char* panel_at(int64_t panel) const {
    return static_cast<const char*>(p_.w) + panel * p_.panel_bytes;
  }
  const float* scales_at(int64_t panel, int64_t group) const {
    return reinterpret_cast<const float*>(panel_at(panel) + p_.scales) + group * 16;
  }

  // A group of run r, or what is of it in the run: sums [panel][row][16], which by rows are chains.
  void add_columns(int64_t row, int64_t panel, int64_t panels, int r, int64_t first, int64_t count,
                   float* sums) {
    const RunScale* own[kRows];  // in groups
    for (int64_t t = 0; t < rows_; ++t) {
      if (!by_rows_) own[t] = &p_.x_scales[(row + t) * row_scales_ + first / kGroup + r];
      split_row(static_cast<const char*>(p_.x) + (row + t) * p_.x_stride + first, count, x_[t]);
    }
    for (int64_t q = 0; q < panels; ++q, sums += rows_ * 16) {
      float* chains = by_rows_ ? sums : chains_;
      for (int64_t i = 0; !by_rows_ && i < rows_ * 16; i += 16) store(chains + i, splat(0.0f));
      split_columns(panel_at(panel + q), first, count, columns_);
      const unsigned mode = _mm_getcsr();
      _mm_setcsr(mode | kTowardZero);
      extend_chains(x_, rows_, columns_, count, chains);
      _mm_setcsr(mode);
      if (!by_rows_) add_group(own, rows_, scales_at(panel + q, first / kGroup), chains, sums);
    }
  }

  // The value of run r, by rows: a panel's outputs have one scale each.
  void scale_panels(int64_t row, int64_t panel, int64_t panels, int r, float* chains) const {
    const RunScale* own[kRows];
    for (int64_t t = 0; t < rows_; ++t) own[t] = &p_.x_scales[(row + t) * row_scales_ + r];
    for (int64_t q = 0; q < panels; ++q, chains += rows_ * 16)
      scale_run(own, rows_, scales_at(panel + q, 0), chains);
  }

  // `dots` [row][16] of a panel; of a gated pair with the first, those of the second after them.
  void write(int64_t row, int64_t panel, const float* dots) {
    if (p_.out && panel % 2) return;
    for (int64_t t = 0; t < rows_; ++t, dots += 16)
      p_.out ? write_gated(p_, row + t, panel, load(dots), load(dots + rows_ * 16))
             : write_plain(p_, row + t, panel, load(dots));
  }

  const PanelProduct& p_;
  const bool by_rows_;
  const int64_t run_, row_scales_;  // columns; of a row
  int64_t rows_ = 0;
  RowColumns x_[kRows];
  Column columns_[kGroup];
  alignas(64) float chains_[kRows * 16];
  RunTrees<kRows, kPanels> trees_;
};

}  // namespace

}  // namespace invar::cpu
