#include "model/families/fp8_rows_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/check.h"
#include "model/families/tensor_table.h"
#include "numerics/e4m3.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

constexpr DType kRow = DType::e4m3_row;

class Fp8Rows final : public SourceOver {
 public:
  Fp8Rows(const DecoderSpec& spec, std::unique_ptr<TensorSource> base)
      : SourceOver(std::move(base)) {
    for (const TensorSpec& tensor : tensors_of(spec)) {
      if (!tensor.takes_quantised || !base_.has(tensor.name)) continue;
      TensorInfo info = base_.info(tensor.name);
      if (info.dtype != DType::bf16 || info.shape.size() != 2) continue;
      if (info.row_elements() % storage_of(kRow).block != 0) continue;
      info.dtype = kRow;
      infos_[tensor.name] = info;
    }
  }

  const TensorInfo& info(std::string_view name) const override {
    const auto entry = infos_.find(name);
    return entry == infos_.end() ? base_.info(name) : entry->second;
  }
  const TensorSource& as_stored() const override { return base_.as_stored(); }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    if (as != kRow) return base_.read(name, first, count, as, out);
    const int64_t block = storage_of(as).block, width = info(name).row_elements();
    CHECK(first % block == 0 && count % block == 0, "whole blocks are read as they are");
    std::vector<float> row(static_cast<size_t>(width));
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t i = first, end; i < first + count; i = end) {
      end = std::min((i / width + 1) * width, first + count);
      base_.read_rows(name, i / width, 1, DType::f32, row.data());
      const float scale = scale_of(name, i / width, row);
      for (int64_t column = i % width; column < i % width + end - i; column += block)
        to = write_block(&row[column], scale, to);
    }
  }

 private:
  float scale_of(std::string_view name, int64_t row, const std::vector<float>& weights) const {
    constexpr float kLargest = 448.0f;
    float largest = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!std::isfinite(weights[i]))
        fail_non_finite(base_, name, row * std::ssize(weights) + static_cast<int64_t>(i));
      largest = std::max(largest, std::fabs(weights[i]));
    }
    return largest / kLargest > 0 ? largest / kLargest : 1;
  }

  // The place behind it.
  static uint8_t* write_block(const float* weights, float scale, uint8_t* to) {
    std::memcpy(to, &scale, sizeof scale);
    to += sizeof scale;
    for (int i = 0; i < storage_of(kRow).block; ++i) *to++ = e4m3::from_f32(weights[i] / scale);
    return to;
  }

  std::map<std::string, TensorInfo, std::less<>> infos_;
};

}  // namespace

std::unique_ptr<TensorSource> fp8_rows(const DecoderSpec& spec,
                                       std::unique_ptr<TensorSource> base) {
  return std::make_unique<Fp8Rows>(spec, std::move(base));
}

}  // namespace invar
