// How products with the matrices of a type are computed by a table of operations: a new type is a
// row here.
#pragma once

#include "kernels/inference.h"

namespace invar {

struct ProductWay {
  // The rows become that before; null: they enter as they are.
  Operation<QuantiseParams> quantise = nullptr;
  // Whether a product does that itself; null: never.
  bool (*makes_rows)(const Matrix& w, int64_t rows, int split_k) = nullptr;
  Operation<MatmulParams> matmul = nullptr;
  Operation<GatedMatmulParams> gated_matmul = nullptr;
};

inline ProductWay product_way(const Kernels& table, DType weights) {
  switch (weights) {
    case DType::i8:
      return {table.quantise, table.makes_integers, table.int8_matmul, table.int8_gated_matmul};
    case DType::e4m3:
      return {table.quantise_fp8, nullptr, table.fp8_matmul, table.fp8_gated_matmul};
    case DType::e4m3_row:
      return {table.quantise_fp8, table.makes_integers, table.fp8_matmul, table.fp8_gated_matmul};
    default:
      return {nullptr, nullptr, table.matmul, table.gated_matmul};
  }
}

}  // namespace invar
