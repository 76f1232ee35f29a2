// Blocks (numerics 0.1) as kernels unpack them: 32 elements of a row at a time, eight by each lane
// of a quad. A dot of four bytes with 1 and three zeros, and with the bits of 1.5 * 2^23, is a byte
// as a float above that, from the pipe that multiplies: the one of byte_perm and of rounding to
// bf16 is what these products wait for. What it is above is taken off by the fma that multiplies by
// the scale. That is exact wherever numerics' product is, so the one rounding (of what is added, if
// anything is) is the same.
//
// A zero may have another sign than the definition's, which reaches no dot: a step of `hopper` has
// no signed zeros, and a dot ends with + 0.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/elementwise.cuh"
#include "numerics/blocks.h"

namespace invar::cuda {

// Elements of a row that are laid out together: a block of 256, or eight blocks of 32.
constexpr int kSlab = 256, kSlabUnit = 32;

// The bytes of a slab.
template <DType type>
struct SlabShape {
  static constexpr StorageType kStorage = storage_of(type);
  static constexpr int kBlocks = kSlab / kStorage.block;
  static constexpr int kValues = kBlocks * kStorage.value_bytes;
  static constexpr int kScales = kBlocks * kStorage.scale_bytes;
};

// Where the bytes of one row's slab are, for lane j of a quad.
struct SlabBytes {
  const uint8_t* values;
  const uint8_t* scales;
  int j;

  __device__ __forceinline__ uint32_t word(int at) const {
    return *reinterpret_cast<const uint32_t*>(values + at);
  }
  // The lane's four bytes of 16.
  __device__ __forceinline__ uint32_t quad(int at) const { return word(at + 4 * j); }
  // The bits of those among 16, and among 16 more: bits 0 to 3, and 16 to 19.
  __device__ __forceinline__ uint32_t fifths(uint32_t word) const { return word >> 4 * j; }
  // Of the scales, at even places.
  __device__ __forceinline__ uint32_t two(int at) const {
    return *reinterpret_cast<const uint16_t*>(scales + at);
  }
  __device__ __forceinline__ uint32_t four(int at) const { return two(at) | two(at + 2) << 16; }
  __device__ __forceinline__ float half(int at) const {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(two(at))));
  }
};

// Elements 4 j .. 4 j + 3 of the unit's first half, and of its second: pairs of bf16.
using SlabEights = uint32_t[2][2];

namespace slabs {

// Byte i of a word, which has a sign, less `zero`, as it and 1.5 * 2^23.
constexpr float kAbove = 0x1.8p23f;
template <int i, int zero = 0>
__device__ __forceinline__ float above(uint32_t bytes) {
  constexpr int kBits = 0x4B400000 - zero;
  return __int_as_float(__dp4a(static_cast<int>(bytes), 1 << 8 * i, kBits));
}

// f * (byte - zero), f of at most 22 significant bits.
template <int zero>
__device__ __forceinline__ void scaled(uint32_t q, float f, uint32_t (&out)[2]) {
  const float less = f * -kAbove;
  out[0] = pack_bf16(__fmaf_rn(f, above<0, zero>(q), less), __fmaf_rn(f, above<1, zero>(q), less));
  out[1] = pack_bf16(__fmaf_rn(f, above<2, zero>(q), less), __fmaf_rn(f, above<3, zero>(q), less));
}
// f * byte + more, rounded once since the product is exact.
__device__ __forceinline__ void scaled_plus(uint32_t q, float f, float more, uint32_t (&out)[2]) {
  out[0] =
      pack_bf16(__fmaf_rn(f, above<0>(q) - kAbove, more), __fmaf_rn(f, above<1>(q) - kAbove, more));
  out[1] =
      pack_bf16(__fmaf_rn(f, above<2>(q) - kAbove, more), __fmaf_rn(f, above<3>(q) - kAbove, more));
}

__device__ __forceinline__ uint32_t lower(uint32_t bytes, int shift = 0) {
  return bytes >> shift & 0x0f0f0f0f;
}
__device__ __forceinline__ uint32_t two_bits(uint32_t bytes, int shift) {
  return bytes >> shift & 0x03030303;
}
// Bits 0 .. 3 as bit 4 of the bytes 0 .. 3.
__device__ __forceinline__ uint32_t fifth_bits(uint32_t bits) {
  return (bits & 15) * 0x00204081 << 4 & 0x10101010;
}
// f times a byte of a word, i not a constant.
__device__ __forceinline__ float times_byte(float f, uint32_t word, int i) {
  const float above = __uint_as_float(0x43000000 | (word >> 8 * i & 0x7f) << 16);
  return f * (above - 128.0f);
}
__device__ __forceinline__ float times_signed(float f, uint32_t byte) {
  const float above = __uint_as_float(0x47000000 | ((byte & 0xff) ^ 0x80) << 8);
  return f * (above - 32896.0f);
}
// The steps of iq4_nl for four codes of 4 bits.
__device__ __forceinline__ uint32_t uneven_steps(uint32_t codes) {
  uint32_t select = (codes | codes >> 4) & 0x00ff00ff;
  select = (select | select >> 8) & 0xffff;
  const uint32_t low = __byte_perm(0xbfad9881, 0xf6eaddcf, select & 0x7777),
                 high = __byte_perm(0x26190d01, 0x71594535, select & 0x7777);
  const uint32_t upper = (codes >> 3 & 0x01010101) * 0xff;
  return (low & ~upper) | (high & upper);
}

}  // namespace slabs

// What a row's slab begins with: nothing in blocks of 32.
template <DType type>
struct SlabScales {
  __device__ __forceinline__ explicit SlabScales(const SlabBytes&) {}
};

// Scales and minimums of 6 bits, as bytes, and the factors of each.
struct SixBitScales {
  uint32_t scales[2], minimums[2];
  float d, e;

  __device__ __forceinline__ explicit SixBitScales(const SlabBytes& at)
      : d(at.half(0)), e(at.half(2)) {
    const uint32_t a = at.four(4), b = at.four(8), c = at.four(12);
    scales[0] = a & 0x3f3f3f3f;
    scales[1] = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    minimums[0] = b & 0x3f3f3f3f;
    minimums[1] = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
  }
  __device__ __forceinline__ float factor(int part) const {
    return slabs::times_byte(d, part < 4 ? scales[0] : scales[1], part % 4);
  }
  __device__ __forceinline__ float less(int part) const {
    return -slabs::times_byte(e, part < 4 ? minimums[0] : minimums[1], part % 4);
  }
};
template <>
struct SlabScales<DType::q4_k> : SixBitScales {
  using SixBitScales::SixBitScales;
};
template <>
struct SlabScales<DType::q5_k> : SixBitScales {
  using SixBitScales::SixBitScales;
};

template <DType type>
struct OfType {};

namespace slabs {

// Elements of unit u, of 8.
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q8_0>, const Bytes& at, const auto&, int u,
                                     SlabEights& out) {
  const float d = at.half(2 * u);
  scaled<0>(at.quad(32 * u), d, out[0]);
  scaled<0>(at.quad(32 * u + 16), d, out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q4_0>, const Bytes& at, const auto&, int u,
                                     SlabEights& out) {
  const float d = at.half(2 * u);
  const uint32_t n = at.quad(16 * u);
  scaled<8>(lower(n), d, out[0]);
  scaled<8>(lower(n, 4), d, out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::iq4_nl>, const Bytes& at, const auto&, int u,
                                     SlabEights& out) {
  const float d = at.half(2 * u);
  const uint32_t n = at.quad(16 * u);
  scaled<0>(uneven_steps(lower(n)), d, out[0]);
  scaled<0>(uneven_steps(lower(n, 4)), d, out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q4_1>, const Bytes& at, const auto&, int u,
                                     SlabEights& out) {
  const float d = at.half(4 * u), m = at.half(4 * u + 2);
  const uint32_t n = at.quad(16 * u);
  scaled_plus(lower(n), d, m, out[0]);
  scaled_plus(lower(n, 4), d, m, out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q5_0>, const Bytes& at, const auto&, int u,
                                     SlabEights& out) {
  const float d = at.half(2 * u);
  const uint32_t n = at.quad(20 * u + 4), h = at.fifths(at.word(20 * u));
  scaled<16>(lower(n) | fifth_bits(h), d, out[0]);
  scaled<16>(lower(n, 4) | fifth_bits(h >> 16), d, out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q5_1>, const Bytes& at, const auto&, int u,
                                     SlabEights& out) {
  const float d = at.half(4 * u), m = at.half(4 * u + 2);
  const uint32_t n = at.quad(20 * u + 4), h = at.fifths(at.word(20 * u));
  scaled_plus(lower(n) | fifth_bits(h), d, m, out[0]);
  scaled_plus(lower(n, 4) | fifth_bits(h >> 16), d, m, out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q4_k>, const Bytes& at,
                                     const SixBitScales& scales, int u, SlabEights& out) {
  const float f = scales.factor(u), less = scales.less(u);
  const int first = u / 2 * 32, shift = u % 2 * 4;
  scaled_plus(lower(at.quad(first), shift), f, less, out[0]);
  scaled_plus(lower(at.quad(first + 16), shift), f, less, out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q5_k>, const Bytes& at,
                                     const SixBitScales& scales, int u, SlabEights& out) {
  const float f = scales.factor(u), less = scales.less(u);
  const int first = 32 + u / 2 * 32, shift = u % 2 * 4;
  const auto integers = [&](int part) {
    return lower(at.quad(first + part), shift) | (at.quad(part) >> u & 0x01010101) << 4;
  };
  scaled_plus(integers(0), f, less, out[0]);
  scaled_plus(integers(16), f, less, out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q6_k>, const Bytes& at, const auto&, int u,
                                     SlabEights& out) {
  const float d = at.half(16);
  const uint32_t both = at.two(2 * u);
  const int low = u / 4 * 64 + u % 2 * 32, high = 128 + u / 4 * 32, quarter = u % 4;
  const auto integers = [&](int part) {
    return lower(at.quad(low + part), quarter / 2 * 4) | two_bits(at.quad(high + part), 2 * quarter)
                                                             << 4;
  };
  scaled<32>(integers(0), times_signed(d, both), out[0]);
  scaled<32>(integers(16), times_signed(d, both >> 8), out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q2_k>, const Bytes& at, const auto&, int u,
                                     SlabEights& out) {
  const float d = at.half(16), e = at.half(18);
  const uint32_t both = at.two(2 * u), s = lower(both), t = lower(both, 4);
  const int first = u / 4 * 32, shift = u % 4 * 2;
  scaled_plus(two_bits(at.quad(first), shift), times_byte(d, s, 0), -times_byte(e, t, 0), out[0]);
  scaled_plus(two_bits(at.quad(first + 16), shift), times_byte(d, s, 1), -times_byte(e, t, 1),
              out[1]);
}
template <typename Bytes>
__device__ __forceinline__ void unit(OfType<DType::q3_k>, const Bytes& at, const auto&, int u,
                                     SlabEights& out) {
  const float d = at.half(12);
  // Scales 2 u and 2 u + 1, each 32 more than it stands for.
  const int j = 2 * u;
  const uint32_t s = lower(at.two(j % 8), j / 8 * 4) | two_bits(at.two(8 + j % 4), j / 4 * 2) << 4;
  const auto factor = [&](int i) {
    return d * (__uint_as_float(0x43000000 | (s >> 8 * i & 0x7f) << 16) - 160.0f);
  };
  const auto integers = [&](int part) {
    return two_bits(at.quad(32 + u / 4 * 32 + part), u % 4 * 2) | (at.quad(part) >> u & 0x01010101)
                                                                      << 2;
  };
  scaled<4>(integers(0), factor(0), out[0]);
  scaled<4>(integers(16), factor(1), out[1]);
}

}  // namespace slabs

template <DType type, typename Bytes>
struct Slab {
  Bytes at;
  SlabScales<type> scales;

  __device__ __forceinline__ explicit Slab(const Bytes& bytes) : at(bytes), scales(bytes) {}
  __device__ __forceinline__ void unit(int u, SlabEights& out) const {
    slabs::unit(OfType<type>{}, at, scales, u, out);
  }
};

}  // namespace invar::cuda
