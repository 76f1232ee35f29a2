// Weights stored in blocks of Q8_0, made from others.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weights/tensor_source.h"

namespace invar {

// ggml's rule for Q8_0: d = largest magnitude / 127, q = round(x / d).
inline void quantise_q8_0(const float* x, uint8_t* block) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127, inverse = d ? 1 / d : 0;
  const uint16_t stored = f32_to_f16(d);
  std::memcpy(block, &stored, sizeof stored);
  for (int i = 0; i < 32; ++i)
    block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
}

// Weights of which some matrices are in blocks of Q8_0, stored so or as the bf16 tensor that
// they stand for.
struct Form {
  bool is_stored = true;
  bool (*has_blocks)(std::string_view name) = [](std::string_view) { return true; };
  const char* changed = "";  // the tensor of which one integer is another
};

class InBlocks final : public TensorSource {
 public:
  InBlocks(std::unique_ptr<TensorSource> base, const Form& form)
      : base_(std::move(base)), form_(form) {
    for (const std::string& name : base_->names()) {
      infos_[name] = base_->info(name);
      if (is_stored(name)) infos_[name].dtype = DType::q8_0;
    }
  }
  const std::vector<std::string>& names() const override { return base_->names(); }
  bool has(std::string_view name) const override { return base_->has(name); }
  const TensorInfo& info(std::string_view name) const override { return infos_.find(name)->second; }
  std::string where(std::string_view name) const override { return base_->where(name); }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    if (!is_in_blocks(name)) return base_->read(name, first, count, as, out);
    std::vector<float> values(count);
    base_->read(name, first, count, DType::f32, values.data());
    std::vector<uint8_t> blocks(bytes_of(DType::q8_0, count));
    for (int64_t i = 0; i < count; i += 32) quantise_q8_0(&values[i], &blocks[i / 32 * 34]);
    if (name == form_.changed && first == 0) blocks[2] ^= 1;
    convert_elements(blocks.data(), DType::q8_0, count, as, out);
  }

 private:
  bool is_in_blocks(std::string_view name) const {
    return base_->info(name).shape.size() == 2 && form_.has_blocks(name);
  }
  bool is_stored(std::string_view name) const { return form_.is_stored && is_in_blocks(name); }

  std::unique_ptr<TensorSource> base_;
  Form form_;
  std::map<std::string, TensorInfo, std::less<>> infos_;
};

}  // namespace invar
