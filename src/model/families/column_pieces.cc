#include "model/families/column_pieces.h"

#include <algorithm>
#include <cstring>

#include "weights/source_bases.h"

namespace invar {

ColumnPieces ColumnPieces::back() const {
  ColumnPieces other{size, std::vector<int64_t>(from.size())};
  for (size_t i = 0; i < from.size(); ++i)
    other.from[static_cast<size_t>(from[i])] = static_cast<int64_t>(i);
  return other;
}

void read_in_pieces(const TensorSource& stored, const std::string& name, int64_t width,
                    const ColumnPieces& pieces, int64_t first, int64_t count, DType as, void* out) {
  std::vector<char> row(static_cast<size_t>(bytes_of(as, width)));
  char* to = static_cast<char*>(out);
  for (int64_t i = first, end = first + count; i < end;) {
    const int64_t begin = i % width, last = std::min(width, begin + end - i);
    stored.read(name, i - begin, width, as, row.data());
    for (int64_t column = begin; column < last;) {
      const int64_t within = column % pieces.size;
      const int64_t n = std::min(pieces.size - within, last - column);
      const int64_t at = pieces.from[static_cast<size_t>(column / pieces.size)] * pieces.size;
      const int64_t bytes = bytes_of(as, n);
      std::memcpy(to, row.data() + bytes_of(as, at + within), static_cast<size_t>(bytes));
      to += bytes;
      column += n;
    }
    i += last - begin;
  }
}

namespace {

class MovedColumns final : public SourceOver {
 public:
  MovedColumns(std::unique_ptr<TensorSource> stored, ColumnsOf columns)
      : SourceOver(std::move(stored)), columns_(std::move(columns)) {}

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const auto found = columns_.find(name);
    if (found == columns_.end()) return base_.read(name, first, count, as, out);
    read_in_pieces(base_, found->first, info(name).row_elements(), found->second, first, count, as,
                   out);
  }

 private:
  const ColumnsOf columns_;
};

}  // namespace

std::unique_ptr<TensorSource> with_columns(std::unique_ptr<TensorSource> stored,
                                           ColumnsOf columns) {
  return std::make_unique<MovedColumns>(std::move(stored), std::move(columns));
}

}  // namespace invar
