#include "model/families/quantised_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "model/families/family_source.h"
#include "model/families/tensors.h"
#include "numerics/e4m3.h"
#include "weights/checkpoint_writer.h"
#include "weights/gguf.h"
#include "weights/source_bases.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxText = 64 << 20;  // bytes of a file that is copied

// How weights become numbers of a byte.
struct ByteFormat {
  const char* dtype;            // as safetensors call it
  const char* scale;            // how the name of the scales' tensor ends
  int64_t rows, columns;        // of a block, which has a scale; columns: 0 for all
  float largest;                // number
  uint8_t (*number_of)(float);  // of a weight by its scale
};

uint8_t integer_of(float x) {
  return static_cast<uint8_t>(static_cast<int8_t>(std::clamp(std::nearbyint(x), -127.0f, 127.0f)));
}

constexpr ByteFormat kW8a8 = {"I8", "_scale", 1, 0, 127, integer_of};
constexpr ByteFormat kFp8Row = {"F8_E4M3", "_scale", 1, 0, 448, e4m3::from_f32};
constexpr ByteFormat kFp8 = {"F8_E4M3", "_scale_inv", 128, 128, 448, e4m3::from_f32};

int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

// Some tensors of a source as numbers of a byte, and their scales beside them.
class QuantisedSource final : public SourceOver {
 public:
  QuantisedSource(const TensorSource& base, const ByteFormat& format,
                  const std::vector<std::string>& quantised, ThreadPool& pool)
      : SourceOver(base), format_(format) {
    for (const std::string& name : base.names()) infos_[name] = base.info(name);
    for (const std::string& name : quantised) {
      const int64_t rows = infos_[name].shape[0], width = infos_[name].row_elements();
      infos_[name].dtype = DType::i8;
      infos_[name + format.scale] = {DType::f32, {ceil_div(rows, format.rows), blocks_of(width)}};
      scales_[name] = scales_of(name, pool);
    }
    for (const auto& [name, info] : infos_) names_.push_back(name);
  }

  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return infos_.contains(name); }
  const TensorInfo& info(std::string_view name) const override { return infos_.find(name)->second; }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    if (const auto scales = scales_.find(name); scales != scales_.end())
      return read_numbers(name, scales->second, first, count, static_cast<uint8_t*>(out));
    if (base_.has(name)) return base_.read(name, first, count, as, out);
    const auto scales =
        scales_.find(name.substr(0, name.size() - std::string_view(format_.scale).size()));
    std::copy_n(scales->second.begin() + first, count, static_cast<float*>(out));
  }

 private:
  // Beside each other.
  int64_t blocks_of(int64_t width) const {
    return format_.columns ? ceil_div(width, format_.columns) : 1;
  }
  int64_t columns_of(int64_t width) const { return format_.columns ? format_.columns : width; }

  // [block of rows][block of columns]
  std::vector<float> scales_of(const std::string& name, ThreadPool& pool) const {
    const TensorInfo& info = base_.info(name);
    const int64_t width = info.row_elements(), beside = blocks_of(width);
    std::vector<float> scales(static_cast<size_t>(ceil_div(info.shape[0], format_.rows) * beside));
    run_or_throw(pool, [&](Part part) {
      std::vector<float> row(static_cast<size_t>(width));
      const auto [begin, end] = part.of(ceil_div(info.shape[0], format_.rows));
      for (int64_t b = begin; b < end; ++b) {
        float* largest = scales.data() + b * beside;
        const int64_t last = std::min((b + 1) * format_.rows, info.shape[0]);
        for (int64_t i = b * format_.rows; i < last; ++i) {
          base_.read_rows(name, i, 1, DType::f32, row.data());
          const int64_t bad = first_non_finite(row.data(), DType::f32, width);
          if (bad >= 0) fail_non_finite(base_, name, i * width + bad);
          for (int64_t k = 0; k < width; ++k) {
            float& of = largest[k / columns_of(width)];
            of = std::max(of, std::fabs(row[k]));
          }
        }
        for (int64_t k = 0; k < beside; ++k)
          largest[k] = largest[k] / format_.largest > 0 ? largest[k] / format_.largest : 1;
      }
    });
    return scales;
  }

  void read_numbers(std::string_view name, const std::vector<float>& scales, int64_t first,
                    int64_t count, uint8_t* out) const {
    const int64_t width = info(name).row_elements(), beside = blocks_of(width);
    std::vector<float> values(static_cast<size_t>(count));
    base_.read(name, first, count, DType::f32, values.data());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (first + i) / width, column = (first + i) % width;
      const int64_t block = row / format_.rows * beside + column / columns_of(width);
      out[i] = format_.number_of(values[i] / scales[block]);
    }
  }

  const ByteFormat& format_;
  std::map<std::string, TensorInfo, std::less<>> infos_;
  std::map<std::string, std::vector<float>, std::less<>> scales_;
  std::vector<std::string> names_;
};

bool is_text(const fs::path& path) {
  const std::string ending = path.extension().string(), name = path.filename().string();
  return (ending == ".json" || ending == ".jinja" || ending == ".txt" || ending == ".model") &&
         name != "config.json" && !name.ends_with(".safetensors.index.json");
}

}  // namespace

void copy_texts(const std::string& from, const std::string& to) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(from)) {
    if (!entry.is_regular_file(error) || !is_text(entry.path())) continue;
    if (static_cast<int64_t>(entry.file_size(error)) > kMaxText)
      fail("{}: expected a file of at most {} bytes beside the weights, found {}",
           entry.path().string(), kMaxText, entry.file_size(error));
    fs::copy_file(entry.path(), fs::path(to) / entry.path().filename(), error);
    if (error) fail("{}: cannot be copied to {}: {}", entry.path().string(), to, error.message());
  }
}

UnquantisedCheckpoint open_unquantised(const std::string& from, const Conversion& how) {
  if (is_gguf(from))
    fail("{}: expected a directory of weights that are not quantised yet, found a GGUF file", from);
  HfDirectory directory = open_hf_directory(from);
  ModelConfig config = parse_model_config(directory.config, directory.generation_config, from,
                                          how.ignored_config_keys);
  if (!config.quantization.is_null())
    fail("{}: expected weights that are not quantised yet, found a quantization_config", from);
  auto stored = open_checkpoint(from);
  const auto tensors = decoder_tensors(config.spec, *stored);
  config.spec = spec_of_stored(config.spec, *tensors);
  check_tensors(config.spec, *tensors);
  return {std::move(directory), std::move(config), std::move(stored)};
}

namespace {

void write_quantised(const std::string& from, const std::string& to, const ByteFormat& format,
                     const json::Value& quantization, ThreadPool& pool, const Conversion& how) {
  const UnquantisedCheckpoint model = open_unquantised(from, how);
  const auto& stored = model.stored;
  std::vector<std::string> quantised;
  for (const StoredTensor& tensor : stored_tensors(model.config.spec)) {
    if (!tensor.parts[0].of.takes_quantised || tensor.shape.size() != 2) continue;
    if (stored->info(tensor.name).dtype != DType::bf16)
      fail("{}: expected BF16, of which numbers of 8 bits are made, found {}",
           stored->where(tensor.name), name_of(stored->info(tensor.name).dtype));
    quantised.push_back(tensor.name);
  }
  write_checkpoint(to, QuantisedSource(*stored, format, quantised, pool), pool,
                   {.progress = how.progress, .byte_type = format.dtype});
  copy_texts(from, to);
  json::Value written = model.directory.config;
  written.set("quantization_config", quantization);
  write_file_atomically((fs::path(to) / "config.json").string(), json::dump(written, 2));
}

// compressed-tensors' with a scale for each output, and for each row of activations.
json::Value channel_config(const char* format, const char* type) {
  const json::Value weights = json::Object{{"num_bits", 8},
                                           {"type", type},
                                           {"symmetric", true},
                                           {"strategy", "channel"},
                                           {"dynamic", false}};
  const json::Value activations = json::Object{{"num_bits", 8},
                                               {"type", type},
                                               {"symmetric", true},
                                               {"strategy", "token"},
                                               {"dynamic", true}};
  return json::Object{{"quant_method", "compressed-tensors"},
                      {"format", format},
                      {"quantization_status", "compressed"},
                      {"config_groups",
                       json::Object{{"group_0", json::Object{{"targets", json::Array{"Linear"}},
                                                             {"weights", weights},
                                                             {"input_activations", activations}}}}},
                      {"ignore", json::Array{"lm_head"}}};
}

}  // namespace

json::Value w8a8_config() {
  return channel_config("int-quantized", "int");
}

json::Value fp8_row_config() {
  return channel_config("float-quantized", "float");
}

json::Value fp8_config() {
  return json::Object{{"quant_method", "fp8"},
                      {"fmt", "e4m3"},
                      {"activation_scheme", "dynamic"},
                      {"weight_block_size", json::Array{kFp8.rows, kFp8.columns}}};
}

void write_w8a8(const std::string& from, const std::string& to, ThreadPool& pool,
                const Conversion& how) {
  write_quantised(from, to, kW8a8, w8a8_config(), pool, how);
}

void write_fp8(const std::string& from, const std::string& to, ThreadPool& pool,
               const Conversion& how) {
  write_quantised(from, to, kFp8, fp8_config(), pool, how);
}

void write_fp8_row(const std::string& from, const std::string& to, ThreadPool& pool,
                   const Conversion& how) {
  write_quantised(from, to, kFp8Row, fp8_row_config(), pool, how);
}

}  // namespace invar
