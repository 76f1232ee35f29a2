#include "model/families/family_source.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/error.h"
#include "model/families/gguf_places.h"
#include "numerics/math.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

bool has_experts(const DecoderSpec& spec) {
  return spec.first<ExpertsSpec>() != nullptr;
}

// All that a decoder reads; a tied head may be stored, too.
std::vector<TensorSpec> readable_tensors(const DecoderSpec& spec) {
  std::vector<TensorSpec> tensors = tensors_of(spec);
  if (spec.tied_head)
    tensors.push_back(
        {TensorRole::head, -1, tensor_name(TensorRole::head), {spec.vocab, spec.hidden}});
  return tensors;
}

struct FamilyEntry {
  StoredAt at;
  TensorInfo info;
};

class FamilySource : public ListedTensors<FamilyEntry> {
 public:
  FamilySource(const DecoderSpec& announced, const TensorSource& stored, bool adds_offsets = true)
      : stored_(stored) {
    const DecoderSpec spec = with_module(announced, stored);
    std::map<std::string, bool> taken;
    for (const TensorSpec& tensor : readable_tensors(spec)) {
      StoredAt at = found_place(spec, tensor, stored);
      at.is_plus_one &= adds_offsets;
      taken[at.tensor] = true;
      if (!stored.has(at.tensor)) {
        if (tensor.role != TensorRole::head || !spec.tied_head) missing_[tensor.name] = at.tensor;
        continue;
      }
      TensorInfo info = stored.info(at.tensor);
      if (!at.shape.empty())
        check_stack(at, tensor, info);
      else if (at.row && !info.shape.empty())
        check_rows(at, tensor, info);
      if (at.is_plus_one) info.dtype = DType::f32;
      // Blocks lie along what are columns here.
      const int64_t block = storage_of(info.dtype).block;
      const bool changes = at.is_transposed || at.scale != 1 || at.pieces.size % block != 0;
      if (changes && storage_of(info.dtype).has_blocks()) info.dtype = DType::bf16;
      if (stored.has_gguf_names() && is_gguf_folded(spec, tensor)) info.dtype = DType::bf16;
      if (stored.has_gguf_names() && may_be_f32_in_gguf(tensor.role) && has_bf16_numbers(at.tensor))
        info.dtype = DType::bf16;
      entries_[tensor.name] = {std::move(at), std::move(info)};
    }
    if (stored.has_gguf_names())
      for (const auto& [here, there] : gguf_module_tensors(spec))
        if (stored.has(here)) {
          entries_[there] = {{here}, stored.info(here)};
          taken[here] = true;
        }
    list_names();
    for (const std::string& name : stored.names())
      if (!taken.contains(name) && !is_left_out(spec, stored, name)) keep(name);
    std::ranges::sort(names_);
  }

  const TensorSource& as_stored() const override { return stored_.as_stored(); }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const FamilyEntry& entry = find(name);
    if (entry.at.is_exponential) return read_logarithms(entry, first, count, as, out);
    if (entry.at.scale != 1) return read_scaled(entry, first, count, as, out);
    if (entry.at.is_plus_one) return read_plus_one(entry, first, count, as, out);
    if (entry.at.is_transposed) return read_transposed(entry, first, count, as, out);
    read_rows(entry, first, count, as, out);
  }

  void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                       float* out) const override {
    const FamilyEntry& entry = find(name);
    if (!entry.at.row) return stored_.read_row_scales(entry.at.tensor, first_row, rows, out);
    for (int64_t i = 0; i < rows; ++i)
      stored_.read_row_scales(entry.at.tensor, entry.at.row(first_row + i), 1, out + i);
  }

  std::string where(std::string_view name) const override {
    if (const auto entry = entries_.find(name); entry != entries_.end())
      return stored_.where(entry->second.at.tensor);
    const auto missing = missing_.find(name);
    return stored_.where(missing == missing_.end() ? std::string(name) : missing->second);
  }

 private:
  void read_rows(const FamilyEntry& entry, int64_t first, int64_t count, DType as,
                 void* out) const {
    if (entry.at.pieces.size > 0)
      return read_in_pieces(stored_, entry.at.tensor, entry.info.row_elements(), entry.at.pieces,
                            first, count, as, out);
    if (!entry.at.row) return stored_.read(entry.at.tensor, first, count, as, out);
    const int64_t width = entry.info.row_elements();
    char* to = static_cast<char*>(out);
    for (int64_t i = first; i < first + count;) {
      // Rows that stand together are read together.
      const int64_t row = i / width, at = entry.at.row(row);
      int64_t rows = 1;
      while ((row + rows) * width < first + count && entry.at.row(row + rows) == at + rows) ++rows;
      const int64_t n = std::min((row + rows) * width, first + count) - i;
      stored_.read(entry.at.tensor, at * width + i % width, n, as, to);
      to += bytes_of(as, n);
      i += n;
    }
  }

  // With the module that config.json does not announce.
  static DecoderSpec with_module(DecoderSpec spec, const TensorSource& stored) {
    const Family* family = find_family(&Family::name, spec.family);
    if (family && family->has_unannounced_module &&
        stored.has(std::string(family->module_prefix) + "fc.weight"))
      spec.mtp_layers = 1;
    return spec;
  }

  // A tensor that holds several, or its rows in another order, has as many as the last one says.
  void check_rows(const StoredAt& at, const TensorSpec& tensor, TensorInfo& info) const {
    int64_t most = 0;
    for (int64_t row = 0; row < tensor.shape[0]; ++row) most = std::max(most, at.row(row));
    if (info.shape.size() != tensor.shape.size() || most >= info.shape[0])
      fail("{}: expected at least {} rows in {} dimensions, found [{}]", stored_.where(at.tensor),
           most + 1, tensor.shape.size(), fmt::join(info.shape, ", "));
    info.shape[0] = tensor.shape[0];
  }

  void check_stack(const StoredAt& at, const TensorSpec& tensor, TensorInfo& info) const {
    if (info.shape != at.shape)
      fail("{}: expected shape [{}], found [{}]", stored_.where(at.tensor),
           fmt::join(at.shape, ", "), fmt::join(info.shape, ", "));
    info.shape = tensor.shape;
  }

  // Whether a tensor of f32 loses nothing as bf16.
  bool has_bf16_numbers(const std::string& name) const {
    const TensorInfo& info = stored_.info(name);
    if (info.dtype != DType::f32) return false;
    constexpr int64_t kAtOnce = 4096;
    float values[kAtOnce];
    for (int64_t i = 0; i < info.elements(); i += kAtOnce) {
      const int64_t count = std::min(kAtOnce, info.elements() - i);
      stored_.read(name, i, count, DType::f32, values);
      for (int64_t k = 0; k < count; ++k)
        if (std::bit_cast<uint32_t>(values[k]) & 0xffff) return false;
    }
    return true;
  }

  // A tensor without a place stays, to be refused.
  void keep(const std::string& name) {
    if (entries_.contains(name)) return;
    names_.push_back(name);
  }

  void read_plus_one(const FamilyEntry& entry, int64_t first, int64_t count, DType as,
                     void* out) const {
    std::vector<float> values(static_cast<size_t>(count));
    read_rows(entry, first, count, DType::f32, values.data());
    for (float& value : values) value = 1.0f + value;
    convert_elements(values.data(), DType::f32, count, as, out);
  }

  // Reads x where -exp(x) is stored: the bf16 number that it was made of, where there is one, else
  // an f32.
  void read_logarithms(const FamilyEntry& entry, int64_t first, int64_t count, DType as,
                       void* out) const {
    constexpr float kClose = 0x1p-22f;
    std::vector<float> values(static_cast<size_t>(count));
    read_rows(entry, first, count, DType::f32, values.data());
    for (float& value : values) {
      if (!(value < 0))
        fail("{}: expected numbers below 0, found {}", stored_.where(entry.at.tensor), value);
      const float found = static_cast<float>(math::log(-static_cast<double>(value)));
      const float rounded = bf16_to_f32(f32_to_bf16(found));
      const bool is_close = std::fabs(math::exp(rounded) + value) <= -value * kClose;
      value = is_close ? rounded : found;
    }
    convert_elements(values.data(), DType::f32, count, as, out);
  }

  // Rounded once to the type that is asked for.
  void read_scaled(const FamilyEntry& entry, int64_t first, int64_t count, DType as,
                   void* out) const {
    std::vector<float> values(static_cast<size_t>(count));
    read_rows(entry, first, count, DType::f32, values.data());
    for (float& value : values) value = value * entry.at.scale;
    convert_elements(values.data(), DType::f32, count, as, out);
  }

  // Whole rows of what stands there as columns.
  void read_transposed(const FamilyEntry& entry, int64_t first, int64_t count, DType as,
                       void* out) const {
    const int64_t width = entry.info.shape[1], column = first / width, columns = count / width;
    CHECK(first % width == 0 && count % width == 0, "whole rows of a tensor that is turned over");
    const int64_t size = bytes_of(as, 1), stored_width = entry.at.shape.back();
    const int64_t step = entry.at.step, first_column = entry.at.column + column * step;
    // Whole blocks of the stored rows.
    const int64_t block = storage_of(stored_.info(entry.at.tensor).dtype).block;
    const int64_t begin = first_column / block * block;
    const int64_t last = first_column + (columns - 1) * step;
    const int64_t span = (last / block + 1) * block - begin;
    std::vector<char> row(static_cast<size_t>(span * size));
    const char* from = row.data() + (first_column - begin) * size;
    for (int64_t i = 0; i < width && columns > 0; ++i) {
      stored_.read(entry.at.tensor, (entry.at.row(0) + i) * stored_width + begin, span, as,
                   row.data());
      for (int64_t c = 0; c < columns; ++c)
        std::memcpy(static_cast<char*>(out) + (c * width + i) * size, from + c * step * size,
                    static_cast<size_t>(size));
    }
  }

  const TensorSource& stored_;
  std::map<std::string, std::string, std::less<>> missing_;  // and where they should stand
};

class OwningSource final : public FamilySource {
 public:
  OwningSource(const DecoderSpec& spec, std::unique_ptr<TensorSource> stored)
      : FamilySource(spec, *stored), owned_(std::move(stored)) {}

 private:
  std::unique_ptr<TensorSource> owned_;
};

}  // namespace

std::unique_ptr<TensorSource> decoder_tensors(const DecoderSpec& spec,
                                              std::unique_ptr<TensorSource> stored) {
  if (!stores_otherwise(spec) && !has_experts(spec) && !stored->has_gguf_names()) return stored;
  return std::make_unique<OwningSource>(spec, std::move(stored));
}

std::unique_ptr<TensorSource> decoder_tensors(const DecoderSpec& spec, const TensorSource& stored) {
  return std::make_unique<FamilySource>(spec, stored);
}

std::unique_ptr<TensorSource> decoder_tensors_without_offsets(const DecoderSpec& spec,
                                                              const TensorSource& stored) {
  return std::make_unique<FamilySource>(spec, stored, false);
}

bool module_reads_output(const DecoderSpec& spec) {
  const Family* family = find_family(&Family::name, spec.family);
  return family && family->module_reads_output;
}

}  // namespace invar
