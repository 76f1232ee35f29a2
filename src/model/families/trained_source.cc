#include "model/families/trained_source.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "model/parts/part.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

struct StoredRow {
  int32_t part = -1;
  int64_t row = 0;  // or column, where the part is stored transposed
};
struct StoredEntry {
  StoredEntry(StoredTensor&& stored, const TensorSource& trained) : tensor(std::move(stored)) {
    const TensorSpec& one = tensor.parts[0].of;
    info = {trained.info(one.name).dtype, tensor.shape};
    width = one.shape.size() == 2 ? tensor.shape.back() : 1;
    if (tensor.parts.size() == 1 && !tensor.parts[0].at.row) return;
    rows.resize(static_cast<size_t>(info.elements() / width));
    for (size_t part = 0; part < tensor.parts.size(); ++part) {
      const auto& [of, at] = tensor.parts[part];
      for (int64_t row = 0; row < of.shape[at.is_transposed ? 1 : 0]; ++row) {
        const int64_t to = at.is_transposed ? at.row(0) + row : at.row ? at.row(row) : row;
        rows[static_cast<size_t>(to)] = {static_cast<int32_t>(part), row};
      }
    }
    CHECK(std::ranges::none_of(rows, [](const StoredRow& row) { return row.part < 0; }),
          "a stored row that is no tensor's");
  }
  // Behind the rows from `row` on that stand together in the decoder's tensor, up to element
  // `end`.
  int64_t end_of_run(int64_t row, int64_t end) const {
    const StoredRow& from = rows[static_cast<size_t>(row)];
    int64_t next = row + 1;
    for (; next * width < end; ++next) {
      const StoredRow& other = rows[static_cast<size_t>(next)];
      if (other.part != from.part || other.row != from.row + next - row) break;
    }
    return next;
  }

  StoredTensor tensor;
  TensorInfo info;
  int64_t width = 1;            // of a row
  std::vector<StoredRow> rows;  // none: it is a tensor of the decoder's as it stands
};

// Stored tensors, each of whose rows is one of a tensor of the decoder's, or a column of one.
class StoredForm final : public ListedTensors<StoredEntry> {
 public:
  StoredForm(const DecoderSpec& spec, const TensorSource& trained) : trained_(trained) {
    for (StoredTensor& tensor : stored_tensors(spec)) {
      names_.push_back(tensor.name);
      std::string name = tensor.name;
      entries_.emplace(std::move(name), StoredEntry(std::move(tensor), trained));
    }
    std::ranges::sort(names_);
  }

  std::string where(std::string_view name) const override {
    return fmt::format("the trained model: tensor {}", json::quoted(name));
  }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const StoredEntry& entry = find(name);
    if (entry.rows.empty())
      return trained_.read(entry.tensor.parts[0].of.name, first, count, as, out);
    const int64_t end = first + count;
    char* to = static_cast<char*>(out);
    for (int64_t at = first; at < end;) {
      const int64_t row = at / entry.width, next = entry.end_of_run(row, end);
      const int64_t n = std::min(next * entry.width, end) - at;
      const StoredRow& from = entry.rows[static_cast<size_t>(row)];
      const auto& [of, place] = entry.tensor.parts[static_cast<size_t>(from.part)];
      const int64_t element = from.row * entry.width + at % entry.width;
      if (place.is_transposed)
        read_columns(of, element, n, as, to);
      else
        trained_.read(of.name, element, n, as, to);
      to += n * size_of(as);
      at += n;
    }
  }

 private:
  // Elements of a tensor's columns, one column after the other: of several from the whole tensor.
  void read_columns(const TensorSpec& of, int64_t first, int64_t count, DType as, char* out) const {
    const int64_t rows = of.shape[0], columns = of.shape[1], size = size_of(as);
    const bool is_whole = count > rows;
    std::vector<char> all(static_cast<size_t>(is_whole ? rows * columns * size : 0));
    if (is_whole) trained_.read(of.name, 0, rows * columns, as, all.data());
    for (int64_t i = first; i < first + count; ++i, out += size) {
      const int64_t element = i % rows * columns + i / rows;
      if (is_whole)
        std::memcpy(out, all.data() + element * size, static_cast<size_t>(size));
      else
        trained_.read(of.name, element, 1, as, out);
    }
  }

  const TensorSource& trained_;
};

// Whether a tensor can be written where it stands: its rows, or its columns as rows, are whole rows
// there.
bool is_written(const StoredTensor& tensor, const StoredAt& at) {
  return !at.is_transposed || (tensor.shape.size() == 2 && at.column == 0 && at.step == 1);
}

}  // namespace

bool has_stored_form(const DecoderSpec& spec) {
  if (!stores_otherwise(spec)) return true;
  if (spec.is_text_tower) return false;
  for (const StoredTensor& tensor : stored_tensors(spec))
    for (const auto& [of, at] : tensor.parts)
      if (!is_written(tensor, at)) return false;
  return true;
}

std::unique_ptr<TensorSource> stored_form(const DecoderSpec& spec, const TensorSource& trained) {
  return std::make_unique<StoredForm>(spec, trained);
}

std::unique_ptr<TensorSource> decoder_form(const DecoderSpec& spec, const TensorSource& trained) {
  if (!stores_otherwise(spec)) return nullptr;
  return decoder_tensors(spec, stored_form(spec, trained));
}

std::unique_ptr<TensorSource> trained_form(const DecoderSpec& spec, const TensorSource& stored) {
  return decoder_tensors_without_offsets(spec, stored);
}

void expect_trainable(const DecoderSpec& spec) {
  if (!has_stored_form(spec))
    fail(
        "a {} model cannot be trained: its checkpoints hold other tensors than the decoder's, and "
        "writing them is not implemented",
        spec.family);
  // A module has no LayerNorms, and those of Kimi Linear are not read.
  if (spec.mtp_layers > 0 && (spec.norm == NormKind::layer || spec.family == "kimi_linear"))
    fail(
        "expected no module of multi-token prediction beside a {} model that is trained, found "
        "one: "
        "modules have no LayerNorms, and those of Kimi Linear are not read",
        spec.family);
  expect_backward(spec);
}

}  // namespace invar
