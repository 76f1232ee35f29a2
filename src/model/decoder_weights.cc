#include "model/decoder_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "base/error.h"
#include "kernels/pack.h"
#include "model/families/tensors.h"
#include "model/weight_upload.h"
#include "numerics/block_dot.h"

namespace invar {

// Rows [first_row, first_row + rows) and columns [first_column, first_column + columns) of a
// tensor, as outputs of a packed matrix, whose inner size is `columns`.
struct PackedPart {
  std::string tensor;
  int64_t first_row, rows, first_column, columns;
  PackPlace place;
};

class WeightLoader : public TensorVisitor {
 public:
  WeightLoader(DecoderWeights& weights, const DecoderSpec& spec, const TensorSource& source,
               const Arithmetic& arithmetic, Device& device, ThreadPool& pool,
               const LoadProgress& progress)
      : WeightLoader(weights, weights.memory_, spec, source, arithmetic, device, pool, progress) {}
  // Into memory that other weights may have had before.
  WeightLoader(DecoderWeights& weights, DecoderWeights::Memory& memory, const DecoderSpec& spec,
               const TensorSource& source, const Arithmetic& arithmetic, Device& device,
               ThreadPool& pool, const LoadProgress& progress)
      : out_(weights),
        memory_(memory),
        spec_(spec),
        shard_(weights.shard_),
        source_(source),
        arithmetic_(arithmetic),
        device_(device),
        pool_(pool),
        progress_(progress),
        blocks_(static_cast<size_t>(pool.size())) {
    if (!device.is_host()) upload_.emplace(device, weights.pinned_);
  }

  void load() {
    total_bytes_ = 0;
    for (const std::string& name : source_.names()) {
      const TensorInfo info = source_.info(name);
      total_bytes_ += bytes_of(info.dtype, info.elements());
    }
    out_.layers_.clear();
    out_.has_blocks_ = out_.has_quantised_ = false;
    load_embedding();
    load_head();
    load_layer_inputs();
    for (int i = 0; i < spec_.all_layers(); ++i)
      out_.layers_.push_back(shard_.has_layer(i) ? load_layer(i) : LayerWeights());
    load_final_norm();
    if (upload_) upload_->wait();
  }

  // A tied head on one rank holds the whole embedding. Several ranks have some columns each,
  // which Operations::embed puts together.
  void load_embedding() {
    if (head_is_embedding() || !shard_.has_embedding || spec_.tokens() == 0) return;
    const int64_t width = spec_.hidden % shard_.size ? spec_.hidden : spec_.hidden / shard_.size;
    const Range columns{width == spec_.hidden ? 0 : shard_.rank * width, width};
    out_.embedding_ = packed(
        {.n = spec_.tokens(), .k = columns.count, .layout = WeightLayout::rows},
        {{tensor_name(TensorRole::embedding), 0, spec_.tokens(), columns.first, columns.count}});
  }

  void load_head() {
    if (!shard_.has_head) return;
    const std::string head =
        tensor_name(spec_.tied_head ? TensorRole::embedding : TensorRole::head);
    out_.head_ = packed({.n = shard_.vocab, .k = spec_.hidden, .layout = out_.layout_},
                        {{head, shard_.first_vocab, shard_.vocab, 0, spec_.hidden}});
    if (head_is_embedding()) out_.embedding_ = out_.head_;
  }

  // Every rank has all of them: what tokens bring is small beside the stream.
  void load_layer_inputs() {
    const int64_t each = spec_.layer_input_width(), width = spec_.layers * each;
    if (width == 0) return;
    const auto all = [&](TensorRole role, int64_t rows, int64_t columns, WeightLayout layout) {
      return packed({.n = rows, .k = columns, .layout = layout},
                    {{tensor_name(role), 0, rows, 0, columns}});
    };
    using enum TensorRole;
    out_.layer_inputs_ = {
        .embedding = all(layer_input_embedding, spec_.tokens(), width, WeightLayout::rows),
        .projection = all(layer_input_projection, width, spec_.hidden, out_.layout_),
        .norm = whole_vector(layer_input_norm, each)};
  }

  void load_final_norm() {
    if (shard_.has_head && spec_.final_norm)
      out_.final_norm_ = whole_vector(TensorRole::final_norm, spec_.hidden);
    if (shard_.has_head && spec_.norm == NormKind::layer)
      out_.final_norm_bias_ = whole_vector(TensorRole::final_norm_bias, spec_.hidden);
  }

  LayerWeights load_layer(int layer) {
    layer_ = layer;
    LayerWeights weights;
    for (const auto& part : parts_of({spec_, layer, shard_})) {
      weights.push_back(part->make_weights());
      part->visit_tensors(*weights.back(), *this);
    }
    if (layer == spec_.layers) vector(out_.module_norm_, {module_norm(spec_)}, nullptr);
    return weights;
  }

  // Norms and biases, one after the other: f32 whatever the weights' type.
  void vector(const float*& to, const std::vector<TensorRow>& rows, const Each* each) override {
    std::vector<VectorPart> parts;
    for (const int32_t e : each ? each->here : std::vector{-1})
      for (const TensorRow& row : rows)
        parts.push_back({tensor_name(row, layer_, e), {row.rows.first, row.rows.count}});
    to = vector(parts);
  }

  // The tensors of some rows as one packed matrix: their outputs one after the other, or, of a
  // gated pair, taking turns. Of each expert, or head, that is here, as a stack.
  void matrix(Matrix& to, const std::vector<TensorRow>& rows, MatrixForm form) override {
    if (form.each) {
      to = stack(rows, form);
    } else if (form.others && arithmetic_.multiplies_blocks) {
      mixed(to, rows, form);
    } else {
      const auto [w, parts] = described(rows, form);
      to = packed(w, parts);
    }
  }

  void numbers(const int32_t*& to, const std::vector<int32_t>& values) override {
    to = wanted_ ? reinterpret_cast<const int32_t*>(memory_[arrays_++].data()) : send(values);
  }
  void numbers(const float*& to, const std::vector<float>& values) override {
    to = wanted_ ? reinterpret_cast<const float*>(memory_[arrays_++].data()) : send(values);
  }

  // Goes the same way and writes nothing.
  void read_back(const std::string& tensor, std::byte* out) {
    wanted_ = &tensor;
    wanted_bytes_ = out;
    load();
  }

 private:
  // The part of a tensor's axis that this rank holds.
  struct Range {
    int64_t first, count;
  };

  // A part of a vector.
  struct VectorPart {
    std::string tensor;
    Range range;
  };

  bool head_is_embedding() const {
    return spec_.tied_head && shard_.size == 1 && shard_.has_embedding && shard_.has_head;
  }

  // A matrix of the tensors that follow each other in one type, others of those after them.
  void mixed(Matrix& to, const std::vector<TensorRow>& rows, const MatrixForm& form) {
    const auto type = [&](const TensorRow& row) {
      return source_.info(tensor_name(row, layer_, -1)).dtype;
    };
    form.others->clear();
    for (auto row = rows.begin(); row != rows.end();) {
      const auto end =
          std::find_if(row, rows.end(), [&](const TensorRow& r) { return type(r) != type(*row); });
      const auto [w, parts] = described({row, end}, form);
      (row == rows.begin() ? to : form.others->emplace_back()) = packed(w, parts);
      row = end;
    }
  }

  Matrix stack(const std::vector<TensorRow>& rows, const MatrixForm& form) {
    std::vector<std::vector<PackedPart>> parts;
    std::vector<PackedPart> all;
    Matrix w;
    for (const int32_t e : form.each->here) {
      std::tie(w, parts.emplace_back()) = described(rows, form, e);
      all.insert(all.end(), parts.back().begin(), parts.back().end());
    }
    const int64_t each = w.count;
    // A device's products of experts read elements.
    w.type = upload_                          ? arithmetic_.weights
             : !arithmetic_.multiplies_blocks ? type_of(all)
             : form.is_twin                   ? arithmetic_.weights
                                              : type_of(parts_of_every(rows, form));
    out_.has_blocks_ |= storage_of(w.type).has_blocks();
    const int64_t count = std::ssize(form.each->here);
    w.count = each * count;
    w.data = allocate(w.bytes());
    for (int64_t i = 0; i < count; ++i) fill(w.part(each * i, each), parts[static_cast<size_t>(i)]);
    return w;
  }

  // Of all ranks' experts, so that these agree in what is multiplied as blocks.
  std::vector<PackedPart> parts_of_every(const std::vector<TensorRow>& rows,
                                         const MatrixForm& form) const {
    std::vector<PackedPart> all;
    for (int e = 0; e < form.each->count; ++e) {
      const auto parts = described(rows, form, e).second;
      all.insert(all.end(), parts.begin(), parts.end());
    }
    return all;
  }

  // A matrix of some rows' tensors, or an expert's, and where it gets its elements from.
  std::pair<Matrix, std::vector<PackedPart>> described(const std::vector<TensorRow>& rows,
                                                       const MatrixForm& form,
                                                       int expert = -1) const {
    std::vector<PackedPart> parts;
    int64_t n = 0;
    for (const TensorRow& row : rows) {
      const PackPlace place =
          form.is_pair ? PackPlace{std::ssize(parts) * kPanelWidth, 2} : PackPlace{n};
      parts.push_back({tensor_name(row, layer_, expert), row.rows.first, row.rows.count,
                       row.columns.first, row.columns.count, place});
      n = form.is_pair ? row.rows.count : n + row.rows.count;
    }
    Matrix w{
        .n = n, .k = rows[0].columns.count, .layout = out_.layout_, .count = form.is_pair ? 2 : 1};
    if (form.takes_quantised && are_quantised(parts)) w.type = arithmetic_.quantised;
    // Ranks must not differ in what is multiplied as blocks.
    if (arithmetic_.multiplies_blocks)
      for (const PackedPart& part : parts) expect_multiplied_blocks(part);
    return {w, parts};
  }

  // Whether all of them are integers, or e4m3, and multiplied so; some and others cannot be one
  // product.
  bool are_quantised(const std::vector<PackedPart>& parts) const {
    if (!arithmetic_.is_quantised()) return false;
    const DType type = arithmetic_.quantised;
    const auto is_such = [&](const PackedPart& part) {
      return source_.info(part.tensor).dtype == type;
    };
    const auto count = std::ranges::count_if(parts, is_such);
    if (count != 0 && count != std::ssize(parts)) {
      const auto other = std::ranges::find_if_not(parts, is_such);
      fail("{}: expected {} as in the tensors of the same product, found {}",
           source_.where(other->tensor), type == DType::i8 ? "int8" : "f8_e4m3",
           name_of(source_.info(other->tensor).dtype));
    }
    if (count != 0) expect_whole_blocks(parts[0], type);
    return count != 0;
  }

  // A rank's columns have scales of their own.
  void expect_whole_blocks(const PackedPart& part, DType type) const {
    const int64_t block = storage_of(type).block;
    if (part.first_column % block != 0 || part.columns % block != 0)
      fail(
          "{}: expected ranks with whole blocks of {} columns, found {} columns from {} on; use "
          "fewer ranks, or the twin",
          source_.where(part.tensor), block, part.columns, part.first_column);
  }

  void expect_multiplied_blocks(const PackedPart& part) const {
    const DType type = source_.info(part.tensor).dtype;
    expect_whole_blocks(part, type);
    if (storage_of(type).has_blocks() && part.columns > orders::kMostBlockColumns)
      fail("{}: expected rows of at most {} columns for --weights blocks, found {}",
           source_.where(part.tensor), orders::kMostBlockColumns, part.columns);
  }

  // The type that a matrix of these parts is stored in: blocks as they are, where its parts agree
  // and none begins or ends inside a block; else the elements that they stand for.
  DType type_of(const std::vector<PackedPart>& parts) const {
    const DType first = source_.info(parts[0].tensor).dtype;
    const StorageType& storage = storage_of(first);
    const bool fits = std::ranges::all_of(parts, [&](const PackedPart& part) {
      return source_.info(part.tensor).dtype == first && part.first_column % storage.block == 0 &&
             part.columns % storage.block == 0;
    });
    const bool on_gpu_too = first != DType::mxfp4;
    const bool stays = storage.has_blocks() && fits && (on_gpu_too || !upload_) &&
                       storage.element == arithmetic_.weights && !arithmetic_.is_baseline;
    return stays ? first : arithmetic_.weights;
  }

  // The matrix that `w` describes, put together from parts of tensors.
  Matrix packed(Matrix w, const std::vector<PackedPart>& parts) {
    if (!is_quantised(w.type)) w.type = type_of(parts);
    out_.has_quantised_ |= is_quantised(w.type);
    out_.has_blocks_ |= storage_of(w.type).has_blocks();
    w.data = allocate(w.bytes());
    fill(w, parts);
    return w;
  }

  void fill(const Matrix& w, const std::vector<PackedPart>& parts) {
    if (wanted_) {
      for (const PackedPart& part : parts)
        if (part.tensor == *wanted_) read_part(w, part);
    } else if (upload_ && w.layout == WeightLayout::rows) {
      for (const PackedPart& part : parts)
        if (!source_.stays(part.tensor)) fill_rows(w, part);
    } else {
      fill_units(w, parts);
    }
    for (const PackedPart& part : parts) finish(part.tensor);
  }

  // Where the rows of a part begin in a matrix that lies at `data`.
  static std::byte* rows_of(const Matrix& w, const PackedPart& part, const void* data) {
    const int64_t first =
        part.place.step == 1 ? part.place.output : part.place.output / kPanelWidth * w.units();
    return static_cast<std::byte*>(const_cast<void*>(data)) + first * w.unit_bytes();
  }

  // A part in a device's memory, whose padding is zero since it was allocated.
  void fill_rows(const Matrix& w, const PackedPart& part) {
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

  void read_part(const Matrix& w, const PackedPart& part) {
    const TensorInfo& info = source_.info(part.tensor);
    const int64_t element = bytes_of(w.type, 1), width = info.shape.at(1) * element;
    if (w.layout != WeightLayout::rows || info.dtype != w.type)
      fail("{}: expected weights in rows of the type that it was given in", part.tensor);
    std::vector<std::byte> rows(static_cast<size_t>(part.rows * w.unit_bytes()));
    device_.download(rows.data(), rows_of(w, part, w.data), rows.size());
    for (int64_t row = 0; row < part.rows; ++row)
      std::memcpy(wanted_bytes_ + (part.first_row + row) * width + part.first_column * element,
                  rows.data() + row * w.unit_bytes(), static_cast<size_t>(part.columns * element));
  }

  void fill_units(const Matrix& w, const std::vector<PackedPart>& parts) {
    // Through buffers all of a matrix is written; the host's memory takes the parts that change.
    const auto changes = [&](const PackedPart& part) { return !source_.stays(part.tensor); };
    if (std::ranges::none_of(parts, changes)) return;
    std::byte* target = static_cast<std::byte*>(const_cast<void*>(w.data));
    if (upload_) return send_units(w, parts, target);
    for (const PackedPart& part : parts)
      if (changes(part)) pack(part, w, target);
  }

  void send_units(const Matrix& w, const std::vector<PackedPart>& parts, std::byte* target) {
    const Units units(w);
    const int64_t at_once = units.in_panels ? 1 : kRowsAtOnce;
    upload_->fill(pool_, {target, units.count, units.bytes, at_once},
                  [&](int64_t begin, int64_t end, std::byte* at, int share) {
                    clear_padding(w, end - begin, at);
                    for (const PackedPart& part : parts)
                      if (const Range rows = units.rows_between(part, begin, end); rows.count > 0)
                        pack_few(part, w, rows.first, rows.count, block_of(share),
                                 at - begin * units.bytes);
                  });
    fail_if_not_finite();
  }

  // What a packed matrix consists of: rows, or panels of 16 outputs.
  struct Units {
    explicit Units(const Matrix& w)
        : in_panels(w.layout == WeightLayout::panels),
          matrix(w.units()),
          count(w.count * matrix),
          bytes(w.unit_bytes()) {}

    // The rows of a part that lie in units [begin, end).
    Range rows_between(const PackedPart& part, int64_t begin, int64_t end) const {
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

  // Of units in a buffer that held others.
  static void clear_padding(const Matrix& w, int64_t units, std::byte* at) {
    if (w.n % kPanelWidth != 0 || storage_of(w.type).has_blocks() || w.type == DType::i8)
      std::memset(at, 0, static_cast<size_t>(units * w.unit_bytes()));
  }

  // Every thread packs its share, a few rows at a time, and then what is left of the others': pages
  // that are touched first, and other work on a core, make some of them late.
  void pack(const PackedPart& part, const Matrix& w, std::byte* target) {
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

  std::vector<std::byte>& block_of(int share) { return blocks_[static_cast<size_t>(share)]; }

  // Whether rows of a part lie in the matrix as they lie in the tensor, one after the other.
  bool are_rows_as_stored(const PackedPart& part, const Matrix& w) const {
    return w.layout == WeightLayout::rows && !storage_of(w.type).has_blocks() &&
           w.type != DType::i8 && part.columns == source_.info(part.tensor).shape.at(1) &&
           w.unit_bytes() == bytes_of(w.type, part.columns);
  }

  // Rows [row, row + count) of a part, where they have to be arranged by way of `block`.
  void pack_few(const PackedPart& part, const Matrix& w, int64_t row, int64_t count,
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
  void read(const PackedPart& part, int64_t row, int64_t count, DType type, std::byte* out) {
    const int64_t width = source_.info(part.tensor).shape.at(1);
    const int64_t first = (part.first_row + row) * width, elements = count * width;
    source_.read(part.tensor, first, elements, type, out);
    if (const int64_t bad = first_non_finite(out, type, elements); bad >= 0)
      note_not_finite(part, first + bad);
  }

  const float* whole_vector(TensorRole role, int64_t size) {
    return vector({{tensor_name(role), {0, size}}});
  }

  const float* vector(const std::vector<VectorPart>& parts) {
    if (const float* there = unchanged(parts)) return there;
    std::vector<float> values;
    for (const VectorPart& part : parts) append(part.tensor, part.range, values);
    return send(values);
  }

  template <typename T>
  const T* send(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    std::byte* target = allocate(bytes);
    if (upload_)
      upload_->send(target, values.data(), bytes);
    else
      std::memcpy(target, values.data(), bytes);
    return reinterpret_cast<const T*>(target);
  }

  // Where a vector lies of which nothing is written, or null.
  const float* unchanged(const std::vector<VectorPart>& parts) {
    if (arrays_ == memory_.size()) return nullptr;
    const auto changes = [&](const VectorPart& part) { return !source_.stays(part.tensor); };
    if (!wanted_ && std::ranges::any_of(parts, changes)) return nullptr;
    return reinterpret_cast<const float*>(memory_[arrays_++].data());
  }

  // A part of a vector.
  void append(const std::string& tensor, Range range, std::vector<float>& values) {
    std::vector<float> one(source_.info(tensor).shape.at(0));
    source_.read(tensor, 0, std::ssize(one), DType::f32, one.data());
    if (const int64_t bad = first_non_finite(one.data(), DType::f32, std::ssize(one)); bad >= 0)
      fail_non_finite(source_, tensor, bad);
    values.insert(values.end(), one.begin() + range.first, one.begin() + range.first + range.count);
    finish(tensor);
  }

  // The first of all is named, whichever thread finds which.
  void note_not_finite(const PackedPart& part, int64_t index) {
    const std::lock_guard lock(noting_);
    NotFinite found{part.place.output, index, part.tensor};
    if (!not_finite_ || found < *not_finite_) not_finite_ = std::move(found);
  }
  void fail_if_not_finite() const {
    if (not_finite_) fail_non_finite(source_, not_finite_->tensor, not_finite_->index);
  }

  void finish(const std::string& tensor) {
    const TensorInfo info = source_.info(tensor);
    done_bytes_ += bytes_of(info.dtype, info.elements());
    if (progress_) progress_(std::min(done_bytes_, total_bytes_), total_bytes_);
  }

  // The next array of the weights: loading always asks for the same ones in the same order.
  std::byte* allocate(int64_t bytes) {
    if (arrays_ == memory_.size())
      memory_.emplace_back(device_, static_cast<size_t>(bytes), "the weights");
    if (memory_[arrays_].size() != static_cast<size_t>(bytes))
      fail("expected weights stored as those that are served, found other storage types");
    return memory_[arrays_++].data();
  }

  DecoderWeights& out_;
  DecoderWeights::Memory& memory_;  // arrays in the order of loading
  const DecoderSpec& spec_;
  const Shard& shard_;
  const TensorSource& source_;
  const Arithmetic& arithmetic_;
  Device& device_;
  ThreadPool& pool_;
  const LoadProgress& progress_;
  std::optional<WeightUpload> upload_;  // to a device that the host cannot write
  static constexpr int64_t kRowsAtOnce = 16;
  std::vector<std::vector<std::byte>> blocks_;  // of rows that are packed, for each share
  struct NotFinite {
    int64_t output, index;  // where the tensor goes, and its element
    std::string tensor;
    auto operator<=>(const NotFinite&) const = default;
  };
  std::mutex noting_;
  std::optional<NotFinite> not_finite_;  // of the matrix that is packed
  int64_t done_bytes_ = 0, total_bytes_ = 0;
  size_t arrays_ = 0;
  int layer_ = -1;                       // that is loaded
  const std::string* wanted_ = nullptr;  // a tensor that is read back; null: all are written
  std::byte* wanted_bytes_ = nullptr;
};

DecoderWeights::DecoderWeights(const DecoderSpec& spec, const Arithmetic& arithmetic,
                               const Shard& shard, const TensorSource& source, Device& device,
                               ThreadPool& pool, WeightLayout layout, const LoadProgress& progress)
    : shard_(shard), arithmetic_(arithmetic), layout_(layout) {
  WeightLoader(*this, spec, source, arithmetic_, device, pool, progress).load();
  pinned_ = {};
}

void DecoderWeights::reload(const DecoderSpec& spec, const TensorSource& source, Device& device,
                            ThreadPool& pool) {
  WeightLoader(*this, spec, source, arithmetic_, device, pool, {}).load();
}

DecoderWeights DecoderWeights::in_turn(const DecoderSpec& spec, const Arithmetic& arithmetic,
                                       WeightLayout layout) {
  DecoderWeights weights(arithmetic, make_shard(spec, 0, 1), layout);
  weights.layers_.resize(static_cast<size_t>(spec.all_layers()));
  return weights;
}

// Arrays of another layer's sizes would not fit, nor their zeros where there is padding.
void DecoderWeights::load_layer(const DecoderSpec& spec, int layer, const TensorSource& source,
                                Device& device, ThreadPool& pool) {
  if (last_layer_ >= 0 && !are_alike(spec, last_layer_, layer)) layer_memory_.clear();
  last_layer_ = layer;
  layers_[static_cast<size_t>(layer)] =
      WeightLoader(*this, layer_memory_, spec, source, arithmetic_, device, pool, {})
          .load_layer(layer);
}

void DecoderWeights::load_embedding(const DecoderSpec& spec, const TensorSource& source,
                                    Device& device, ThreadPool& pool) {
  if (spec.tied_head) return load_head(spec, source, device, pool);
  end_memory_.clear();
  WeightLoader(*this, end_memory_, spec, source, arithmetic_, device, pool, {}).load_embedding();
}

void DecoderWeights::load_head(const DecoderSpec& spec, const TensorSource& source, Device& device,
                               ThreadPool& pool) {
  if (!spec.tied_head) end_memory_.clear();
  WeightLoader(*this, end_memory_, spec, source, arithmetic_, device, pool, {}).load_head();
}

void DecoderWeights::load_final_norm(const DecoderSpec& spec, const TensorSource& source,
                                     Device& device, ThreadPool& pool) {
  WeightLoader(*this, norm_memory_, spec, source, arithmetic_, device, pool, {}).load_final_norm();
}

void DecoderWeights::read_back(const DecoderSpec& spec, const TensorSource& source, Device& device,
                               ThreadPool& pool, const std::string& tensor, std::byte* out) {
  WeightLoader(*this, spec, source, arithmetic_, device, pool, {}).read_back(tensor, out);
}

void DecoderWeights::vacate() {
  pinned_ = {};
  for (auto& array : memory_) array.vacate();
}

void DecoderWeights::occupy() {
  for (auto& array : memory_) array.occupy("the weights");
}

int64_t DecoderWeights::bytes() const {
  int64_t total = 0;
  for (const auto& array : memory_) total += static_cast<int64_t>(array.size());
  return total;
}

}  // namespace invar
