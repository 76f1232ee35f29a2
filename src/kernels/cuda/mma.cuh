// The tensor-core instruction that order `hopper` is made of, with operands as they lie in packed
// panels.
#pragma once

#include <cstdint>

namespace invar::cuda {

// d[output][row] += sum over 16 inner elements of a[output][inner] * b[inner][row], for 16 outputs
// and 8 rows: one hopper step for each of the 128 values (numerics 1.2). Lane l holds, with i = l /
// 4 and j = l % 4,
//   a: pairs of inner elements (two of the eight of a step) of outputs 2i and 2i +
//   1; b: the same pairs of row i;   d: outputs 2i, 2i, 2i + 1, 2i + 1 of rows 2j, 2j + 1, 2j, 2j
//   + 1.
// The instruction knows rows i and i + 8 instead of outputs 2i and 2i + 1, and pairs j and j + 4:
// names only, since neither the output's number nor the order inside a step reaches the bits.
struct StepOutputs {
  uint32_t a[4];  // {first pair of output 2i, of 2i + 1, second pair of 2i, of 2i + 1}
};
struct StepRows {
  uint32_t b[2];  // {first pair, second pair}
};

__device__ __forceinline__ void step(float (&d)[4], const StepOutputs& x, const StepRows& y) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(x.a[0]), "r"(x.a[1]), "r"(x.a[2]), "r"(x.a[3]), "r"(y.b[0]), "r"(y.b[1]));
}

// Step s of the row whose words `row` points to (a different row for each i), the same pairs.
__device__ __forceinline__ StepRows load_row(const uint32_t* row, int s, int lane) {
  const uint2 pairs = *reinterpret_cast<const uint2*>(row + s * 8 + lane % 4 * 2);
  return {{pairs.x, pairs.y}};
}

}  // namespace invar::cuda
