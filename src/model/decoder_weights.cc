#include "model/decoder_weights.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "model/families/tensors.h"
#include "model/matrix_packer.h"
#include "model/stored_types.h"

namespace invar {

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
        progress_(progress),
        packer_(source, device, pool, weights.pinned_),
        types_(source, arithmetic, device.is_host()) {}

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
    packer_.wait();
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
  // gated pair, taking turns. Experts, or heads, that are here make a stack.
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
    w.type = !device_.is_host()               ? arithmetic_.weights
             : !arithmetic_.multiplies_blocks ? types_.type_of(all)
             : form.is_twin                   ? arithmetic_.weights
                                              : types_.type_of(parts_of_every(rows, form));
    out_.has_blocks_ |= storage_of(w.type).has_blocks();
    const int64_t count = std::ssize(form.each->here);
    w.count = each * count;
    w.data = allocate(w.bytes());
    for (int64_t i = 0; i < count; ++i) fill(w.part(each * i, each), parts[static_cast<size_t>(i)]);
    return w;
  }

  // Parts of all ranks' experts, so that these agree in what is multiplied as blocks.
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
    if (form.takes_quantised && types_.are_quantised(parts)) w.type = arithmetic_.quantised;
    // Ranks must not differ in what is multiplied as blocks.
    if (arithmetic_.multiplies_blocks)
      for (const PackedPart& part : parts) types_.expect_multiplied_blocks(part);
    return {w, parts};
  }

  // The matrix that `w` describes, put together from parts of tensors.
  Matrix packed(Matrix w, const std::vector<PackedPart>& parts) {
    if (!is_quantised(w.type)) w.type = types_.type_of(parts);
    out_.has_quantised_ |= is_quantised(w.type);
    out_.has_blocks_ |= storage_of(w.type).has_blocks();
    w.data = allocate(w.bytes());
    fill(w, parts);
    return w;
  }

  void fill(const Matrix& w, const std::vector<PackedPart>& parts) {
    if (!wanted_) packer_.fill(w, parts);
    for (const PackedPart& part : parts) {
      if (wanted_ && part.tensor == *wanted_) packer_.read_back(w, part, wanted_bytes_);
      finish(part.tensor);
    }
  }

  const float* whole_vector(TensorRole role, int64_t size) {
    return vector({{tensor_name(role), {0, size}}});
  }

  const float* vector(const std::vector<VectorPart>& parts) {
    if (const float* there = unchanged(parts)) return there;
    int64_t size = 0;
    for (const VectorPart& part : parts) size += part.range.count;
    std::vector<float> values(static_cast<size_t>(size));
    if (std::ranges::any_of(parts, [&](const VectorPart& part) { return stays(part); }))
      device_.download(values.data(), memory_[arrays_].data(), values.size() * sizeof(float));
    float* to = values.data();
    for (const VectorPart& part : parts) {
      if (!stays(part)) read(part, to);
      to += part.range.count;
    }
    return send(values);
  }

  bool stays(const VectorPart& part) const { return source_.stays(part.tensor); }

  template <typename T>
  const T* send(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    std::byte* target = allocate(bytes);
    packer_.write(target, values.data(), bytes);
    return reinterpret_cast<const T*>(target);
  }

  // Where a vector lies of which nothing is written, or null.
  const float* unchanged(const std::vector<VectorPart>& parts) {
    if (arrays_ == memory_.size()) return nullptr;
    if (!wanted_ &&
        !std::ranges::all_of(parts, [&](const VectorPart& part) { return stays(part); }))
      return nullptr;
    return reinterpret_cast<const float*>(memory_[arrays_++].data());
  }

  void read(const VectorPart& part, float* to) {
    std::vector<float> one(source_.info(part.tensor).shape.at(0));
    source_.read(part.tensor, 0, std::ssize(one), DType::f32, one.data());
    if (const int64_t bad = first_non_finite(one.data(), DType::f32, std::ssize(one)); bad >= 0)
      fail_non_finite(source_, part.tensor, bad);
    std::copy_n(one.begin() + part.range.first, part.range.count, to);
    finish(part.tensor);
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
  const LoadProgress& progress_;
  MatrixPacker packer_;
  StoredTypes types_;
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
