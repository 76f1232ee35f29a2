// Matrices whose columns stand in another order, piece by piece.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weights/tensor_source.h"

namespace invar {

struct ColumnPieces {
  int64_t size = 0;           // columns of a piece; 0: all stand at their own places
  std::vector<int64_t> from;  // piece i is the stored row's piece from[i]

  ColumnPieces back() const;  // the other way
};
using ColumnsOf = std::map<std::string, ColumnPieces, std::less<>>;  // of tensors

// Elements [first, first + count) of the matrix whose rows, `width` wide, `stored` has in that
// order. Whole blocks of the type, as in TensorSource::read.
void read_in_pieces(const TensorSource& stored, const std::string& name, int64_t width,
                    const ColumnPieces& pieces, int64_t first, int64_t count, DType as, void* out);
// A source whose matrices of that name have their columns so.
std::unique_ptr<TensorSource> with_columns(std::unique_ptr<TensorSource> stored, ColumnsOf columns);

}  // namespace invar
