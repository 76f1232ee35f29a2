#include "weights/int8_source.h"

#include <cmath>
#include <map>
#include <vector>

#include "base/error.h"
#include "weights/source_bases.h"

namespace invar {

namespace {

constexpr std::string_view kWeight = ".weight", kScale = "_scale";

// The values that a part of the configuration must have; a key that is absent has the first one.
struct Demand {
  const char* key;
  std::vector<json::Value> values;
};

void check_part(const json::Value* part, const char* name, const std::vector<Demand>& demands,
                const std::string& where) {
  if (!part || !part->is_object())
    fail("{}: quantization_config: expected W8A8 with an object as {}, found {}", where, name,
         part ? part->type_name() : "nothing");
  for (const Demand& demand : demands) {
    const json::Value* found = part->find(demand.key);
    if (!found) continue;
    bool fits = false;
    for (const json::Value& value : demand.values) fits = fits || *found == value;
    if (!fits)
      fail("{}: quantization_config: expected {} as {} of {}, found {}", where,
           json::dump(demand.values[0]), demand.key, name, json::excerpt(*found));
  }
}

void check_group(const json::Value& group, const std::string& where) {
  const json::Value none;
  check_part(group.find("weights"), "weights",
             {{"num_bits", {8}},
              {"type", {"int"}},
              {"symmetric", {true}},
              {"strategy", {"channel"}},
              {"dynamic", {false}},
              {"group_size", {none}},
              {"block_structure", {none}},
              {"actorder", {none}}},
             where);
  check_part(group.find("input_activations"), "input_activations",
             {{"num_bits", {8}},
              {"type", {"int"}},
              {"symmetric", {true}},
              {"strategy", {"token"}},
              {"dynamic", {true}},
              {"group_size", {none}}},
             where);
}

}  // namespace

bool asks_for_integers(const json::Value& quantization) {
  const json::Value* groups = quantization.find("config_groups");
  const json::Value* format = quantization.find("format");
  if (!groups || !groups->is_object() || (format && *format != json::Value("int-quantized")))
    return false;
  for (const auto& [name, group] : groups->as_object())
    if (const json::Value* inputs = group.find("input_activations"); inputs && !inputs->is_null())
      return true;
  return false;
}

void check_w8a8(const json::Value& quantization, const std::string& where) {
  const json::Value none;
  check_part(&quantization, "quantization_config",
             {{"quant_method", {"compressed-tensors"}},
              {"format", {"int-quantized"}},
              {"quantization_status", {"compressed", "frozen"}},
              {"kv_cache_scheme", {none}}},
             where);
  const json::Value* groups = quantization.find("config_groups");
  if (!quantization.find("quant_method") || !groups || !groups->is_object() ||
      groups->as_object().empty())
    fail("{}: quantization_config: expected compressed-tensors with config_groups, found {}", where,
         json::excerpt(quantization));
  for (const auto& [name, group] : groups->as_object()) check_group(group, where);
}

namespace {

class Int8Source final : public SourceOver {
 public:
  Int8Source(std::unique_ptr<TensorSource> stored, bool as_twin)
      : SourceOver(std::move(stored)), as_twin_(as_twin) {
    std::map<std::string, bool, std::less<>> is_scale;
    for (const std::string& name : base_.names())
      if (is_integers(name)) {
        add(name);
        is_scale[name + std::string(kScale)] = true;
      }
    for (const std::string& name : base_.names())
      if (!is_scale.contains(name)) names_.push_back(name);
  }

  const std::vector<std::string>& names() const override { return names_; }
  const TensorInfo& info(std::string_view name) const override {
    const auto entry = entries_.find(name);
    return entry == entries_.end() ? base_.info(name) : entry->second;
  }
  const TensorSource& as_stored() const override { return base_.as_stored(); }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const auto entry = entries_.find(name);
    if (entry == entries_.end() || as == DType::i8) return base_.read(name, first, count, as, out);
    read_twin(name, entry->second.row_elements(), first, count, as, static_cast<char*>(out));
  }

  void read_row_scales(std::string_view name, int64_t first_row, int64_t rows,
                       float* out) const override {
    const std::string scale = std::string(name) + std::string(kScale);
    base_.read(scale, first_row, rows, DType::f32, out);
    for (int64_t i = 0; i < rows; ++i)
      if (!std::isfinite(out[i])) fail_non_finite(base_, scale, first_row + i);
  }

 private:
  bool is_integers(const std::string& name) const {
    const std::string scale = name + std::string(kScale);
    return name.ends_with(kWeight) && base_.has(scale) && base_.info(name).dtype == DType::i8;
  }

  void add(const std::string& name) {
    TensorInfo info = base_.info(name);
    const std::string scale = name + std::string(kScale);
    const TensorInfo& scales = base_.info(scale);
    const bool fits = info.shape.size() == 2 && scales.elements() == info.shape[0] &&
                      scales.shape.size() <= 2 && !scales.shape.empty() &&
                      scales.shape[0] == info.shape[0];
    if (!fits)
      fail("{}: expected a scale for each row of a matrix, found [{}] beside [{}]",
           base_.where(scale), fmt::join(scales.shape, ", "), fmt::join(info.shape, ", "));
    if (scales.dtype != DType::bf16 && scales.dtype != DType::f32)
      fail("{}: expected scales of BF16 or F32, found {}", base_.where(scale),
           name_of(scales.dtype));
    info.dtype = as_twin_ ? DType::bf16 : DType::i8;
    entries_[name] = std::move(info);
  }

  // Parts of rows, one after the other.
  void read_twin(std::string_view name, int64_t width, int64_t first, int64_t count, DType as,
                 char* out) const {
    std::vector<int8_t> integers(static_cast<size_t>(std::min(count, width)));
    std::vector<float> values(integers.size());
    for (int64_t i = first; i < first + count;) {
      const int64_t row = i / width, n = std::min((row + 1) * width, first + count) - i;
      float scale = 0;
      read_row_scales(name, row, 1, &scale);
      base_.read(name, i, n, DType::i8, integers.data());
      for (int64_t j = 0; j < n; ++j)
        values[j] = bf16_to_f32(f32_to_bf16(static_cast<float>(integers[j]) * scale));
      convert_elements(values.data(), DType::f32, n, as, out);
      out += n * size_of(as);
      i += n;
    }
  }

  const bool as_twin_;
  std::map<std::string, TensorInfo, std::less<>> entries_;
  std::vector<std::string> names_;
};

}  // namespace

std::unique_ptr<TensorSource> int8_tensors(std::unique_ptr<TensorSource> stored, bool as_twin) {
  return std::make_unique<Int8Source>(std::move(stored), as_twin);
}

}  // namespace invar
