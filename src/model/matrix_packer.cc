#include "model/matrix_packer.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"

namespace invar {

namespace {

struct RowRange {
  int64_t first, count;
};

// Where the rows of a part begin in a matrix that lies at `data`.
std::byte* rows_of(const Matrix& w, const PackedPart& part, const void* data) {
  const int64_t first =
      part.place.step == 1 ? part.place.output : part.place.output / kPanelWidth * w.units();
  return static_cast<std::byte*>(const_cast<void*>(data)) + first * w.unit_bytes();
}

// The units of a packed matrix: rows, or panels of 16 outputs.
struct Units {
  explicit Units(const Matrix& w)
      : in_panels(w.layout == WeightLayout::panels),
        matrix(w.units()),
        count(w.count * matrix),
        bytes(w.unit_bytes()) {}

  // The rows of a part that lie in units [begin, end).
  RowRange rows_between(const PackedPart& part, int64_t begin, int64_t end) const {
    const auto first_row = [&](int64_t unit) {
      const int64_t base = part.place.output / kPanelWidth, step = part.place.step;
      int64_t row = 0;
      if (!in_panels)
        row = unit - (step == 1 ? part.place.output : base * matrix);
      else if (step == 1)
        row = unit * kPanelWidth - part.place.output;
      else
        row = (unit - base + step - 1) / step * kPanelWidth;
      return std::clamp<int64_t>(row, 0, part.rows);
    };
    return {first_row(begin), first_row(end) - first_row(begin)};
  }

  bool in_panels;
  int64_t matrix, count, bytes;
};

// Clears the padding of units in a buffer that held others.
void clear_padding(const Matrix& w, int64_t units, std::byte* at) {
  if (w.n % kPanelWidth != 0 || storage_of(w.type).has_blocks() || w.type == DType::i8)
    std::memset(at, 0, static_cast<size_t>(units * w.unit_bytes()));
}

}  // namespace

MatrixPacker::MatrixPacker(const TensorSource& source, Device& device, ThreadPool& pool,
                           WeightUpload::Buffers& buffers)
    : source_(source), device_(device), pool_(pool), blocks_(static_cast<size_t>(pool.size())) {
  if (!device.is_host()) upload_.emplace(device, buffers);
}

void MatrixPacker::fill(const Matrix& w, const std::vector<PackedPart>& parts) {
  if (upload_ && w.layout == WeightLayout::rows) {
    for (const PackedPart& part : parts)
      if (!source_.stays(part.tensor)) fill_rows(w, part);
  } else {
    fill_units(w, parts);
  }
}

// A part in a device's memory, whose padding is zero since it was allocated.
void MatrixPacker::fill_rows(const Matrix& w, const PackedPart& part) {
  std::byte* target = rows_of(w, part, w.data);
  const int64_t row_bytes = w.unit_bytes(), element = bytes_of(w.type, 1);
  const TensorInfo& info = source_.info(part.tensor);
  const std::byte* there = source_.on_gpu(part.tensor);
  if (there && info.dtype == w.type) {
    const int64_t width = info.shape.at(1) * element;
    upload_->copy_rows(target, static_cast<size_t>(row_bytes),
                       there + part.first_row * width + part.first_column * element,
                       static_cast<size_t>(width), static_cast<size_t>(part.columns * element),
                       static_cast<size_t>(part.rows));
    return;
  }
  PackedPart moved = part;  // to the beginning of what a thread gets
  moved.place = {};
  upload_->fill(pool_, {target, part.rows, row_bytes, kRowsAtOnce},
                [&](int64_t begin, int64_t end, std::byte* at, int share) {
                  clear_padding(w, end - begin, at);
                  pack_few(moved, w, begin, end - begin, block_of(share), at - begin * row_bytes);
                });
  fail_if_not_finite();
}

// The elements go to their places in the whole tensor.
void MatrixPacker::read_back(const Matrix& w, const PackedPart& part, std::byte* out) const {
  const TensorInfo& info = source_.info(part.tensor);
  const int64_t element = bytes_of(w.type, 1), width = info.shape.at(1) * element;
  if (w.layout != WeightLayout::rows || info.dtype != w.type)
    fail("{}: expected weights in rows of the type that it was given in", part.tensor);
  std::vector<std::byte> rows(static_cast<size_t>(part.rows * w.unit_bytes()));
  device_.download(rows.data(), rows_of(w, part, w.data), rows.size());
  for (int64_t row = 0; row < part.rows; ++row)
    std::memcpy(out + (part.first_row + row) * width + part.first_column * element,
                rows.data() + row * w.unit_bytes(), static_cast<size_t>(part.columns * element));
}

void MatrixPacker::fill_units(const Matrix& w, const std::vector<PackedPart>& parts) {
  std::vector<PackedPart> changed;
  std::ranges::copy_if(parts, std::back_inserter(changed),
                       [&](const PackedPart& part) { return !source_.stays(part.tensor); });
  if (changed.empty()) return;
  std::byte* target = static_cast<std::byte*>(const_cast<void*>(w.data));
  if (upload_) return send_units(w, changed, changed.size() < parts.size(), target);
  for (const PackedPart& part : changed) pack(part, w, target);
}

// A unit may have rows of several parts: where some stay, it is what it was but for the others.
void MatrixPacker::send_units(const Matrix& w, const std::vector<PackedPart>& changed,
                              bool some_stay, std::byte* target) {
  const Units units(w);
  const int64_t at_once = units.in_panels ? 1 : kRowsAtOnce;
  upload_->fill(pool_, {target, units.count, units.bytes, at_once},
                [&](int64_t begin, int64_t end, std::byte* at, int share) {
                  if (some_stay)
                    device_.download(at, target + begin * units.bytes,
                                     static_cast<size_t>((end - begin) * units.bytes));
                  else
                    clear_padding(w, end - begin, at);
                  for (const PackedPart& part : changed)
                    if (const RowRange rows = units.rows_between(part, begin, end); rows.count > 0)
                      pack_few(part, w, rows.first, rows.count, block_of(share),
                               at - begin * units.bytes);
                });
  fail_if_not_finite();
}

// Every thread packs its share, a few rows at a time, and then what is left of the others': pages
// that are touched first, and other work on a core, make some of them late.
void MatrixPacker::pack(const PackedPart& part, const Matrix& w, std::byte* target) {
  std::vector<std::atomic<int64_t>> packed(static_cast<size_t>(pool_.size()));  // of each share
  run_or_throw(pool_, [&](Part own) {
    for (int i = 0; i < own.count; ++i) {
      const Part share{(own.index + i) % own.count, own.count};
      const auto [begin, end] = share.of(part.rows, kRowsAtOnce);
      auto& next = packed[static_cast<size_t>(share.index)];
      for (int64_t row = begin; (row = begin + next.fetch_add(kRowsAtOnce)) < end;)
        pack_few(part, w, row, std::min(kRowsAtOnce, end - row), block_of(own.index), target);
    }
  });
  fail_if_not_finite();
}

// Whether rows of a part lie in the matrix as they lie in the tensor, one after the other.
bool MatrixPacker::are_rows_as_stored(const PackedPart& part, const Matrix& w) const {
  return w.layout == WeightLayout::rows && !storage_of(w.type).has_blocks() &&
         w.type != DType::i8 && part.columns == source_.info(part.tensor).shape.at(1) &&
         w.unit_bytes() == bytes_of(w.type, part.columns);
}

// Rows [row, row + count) of a part, where they have to be arranged by way of `block`.
void MatrixPacker::pack_few(const PackedPart& part, const Matrix& w, int64_t row, int64_t count,
                            std::vector<std::byte>& block, std::byte* target) {
  if (are_rows_as_stored(part, w))
    return read(part, row, count, w.type, rows_of(w, part, target) + row * w.unit_bytes());
  const int64_t width = source_.info(part.tensor).shape.at(1);
  const auto bytes = static_cast<size_t>(bytes_of(w.type, kRowsAtOnce * width));
  if (block.size() < bytes) block.resize(bytes);
  read(part, row, count, w.type, block.data());
  pack_rows(w, block.data() + bytes_of(w.type, part.first_column), width, row, count, part.place,
            target);
  if (w.type != DType::i8) return;
  float scales[kRowsAtOnce];
  source_.read_row_scales(part.tensor, part.first_row + row, count, scales);
  pack_scales(w, scales, row, count, part.place, target);
}

// Whole rows of the part's tensor, looked at while they are in the caches.
void MatrixPacker::read(const PackedPart& part, int64_t row, int64_t count, DType type,
                        std::byte* out) {
  const int64_t width = source_.info(part.tensor).shape.at(1);
  const int64_t first = (part.first_row + row) * width, elements = count * width;
  source_.read(part.tensor, first, elements, type, out);
  if (const int64_t bad = first_non_finite(out, type, elements); bad >= 0)
    note_not_finite(part, first + bad);
}

// The first of all is named, whichever thread finds which.
void MatrixPacker::note_not_finite(const PackedPart& part, int64_t index) {
  const std::lock_guard lock(noting_);
  NotFinite found{part.place.output, index, part.tensor};
  if (!not_finite_ || found < *not_finite_) not_finite_ = std::move(found);
}

void MatrixPacker::fail_if_not_finite() const {
  if (not_finite_) fail_non_finite(source_, not_finite_->tensor, not_finite_->index);
}

void MatrixPacker::write(std::byte* target, const void* from, size_t bytes) {
  if (upload_)
    upload_->send(target, from, bytes);
  else
    std::memcpy(target, from, bytes);
}

void MatrixPacker::wait() {
  if (upload_) upload_->wait();
}

}  // namespace invar
