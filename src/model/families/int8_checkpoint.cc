#include "model/families/int8_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "model/families/families.h"
#include "model/families/family_source.h"
#include "model/families/tensors.h"
#include "weights/checkpoint_writer.h"
#include "weights/hf_directory.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kScale = "_scale";
constexpr int64_t kMaxText = 64 << 20;  // bytes of a file that is copied

// Some tensors of a source as integers, and their scales beside them.
class QuantisedSource final : public TensorSource {
 public:
  QuantisedSource(const TensorSource& base, const std::vector<std::string>& quantised,
                  ThreadPool& pool)
      : base_(base) {
    for (const std::string& name : base.names()) infos_[name] = base.info(name);
    for (const std::string& name : quantised) {
      infos_[name].dtype = DType::i8;
      infos_[name + std::string(kScale)] = {DType::f32, {infos_[name].shape[0], 1}};
      scales_[name] = scales_of(name, pool);
    }
    for (const auto& [name, info] : infos_) names_.push_back(name);
  }

  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return infos_.contains(name); }
  const TensorInfo& info(std::string_view name) const override { return infos_.find(name)->second; }
  std::string where(std::string_view name) const override { return base_.where(name); }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    if (const auto scales = scales_.find(name); scales != scales_.end())
      return read_integers(name, scales->second, first, count, static_cast<int8_t*>(out));
    if (base_.has(name)) return base_.read(name, first, count, as, out);
    const auto scales = scales_.find(name.substr(0, name.size() - kScale.size()));
    std::copy_n(scales->second.begin() + first, count, static_cast<float*>(out));
  }

 private:
  std::vector<float> scales_of(const std::string& name, ThreadPool& pool) const {
    const TensorInfo& info = base_.info(name);
    std::vector<float> scales(static_cast<size_t>(info.shape[0]));
    run_or_throw(pool, [&](Part part) {
      std::vector<float> row(static_cast<size_t>(info.row_elements()));
      const auto [begin, end] = part.of(info.shape[0]);
      for (int64_t i = begin; i < end; ++i) {
        base_.read_rows(name, i, 1, DType::f32, row.data());
        const int64_t bad = first_non_finite(row.data(), DType::f32, std::ssize(row));
        if (bad >= 0) fail_non_finite(base_, name, i * info.row_elements() + bad);
        float largest = 0;
        for (const float w : row) largest = std::max(largest, std::fabs(w));
        scales[i] = largest / 127 > 0 ? largest / 127 : 1;
      }
    });
    return scales;
  }

  void read_integers(std::string_view name, const std::vector<float>& scales, int64_t first,
                     int64_t count, int8_t* out) const {
    const int64_t width = info(name).row_elements();
    std::vector<float> values(static_cast<size_t>(count));
    base_.read(name, first, count, DType::f32, values.data());
    for (int64_t i = 0; i < count; ++i) {
      const float q = std::nearbyint(values[i] / scales[(first + i) / width]);
      out[i] = static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f));
    }
  }

  const TensorSource& base_;
  std::map<std::string, TensorInfo, std::less<>> infos_;
  std::map<std::string, std::vector<float>, std::less<>> scales_;
  std::vector<std::string> names_;
};

bool is_text(const fs::path& path) {
  const std::string ending = path.extension().string(), name = path.filename().string();
  return (ending == ".json" || ending == ".jinja" || ending == ".txt" || ending == ".model") &&
         name != "config.json" && !name.ends_with(".safetensors.index.json");
}

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

}  // namespace

json::Value w8a8_config() {
  const json::Value weights = json::Object{{"num_bits", 8},
                                           {"type", "int"},
                                           {"symmetric", true},
                                           {"strategy", "channel"},
                                           {"dynamic", false}};
  const json::Value activations = json::Object{{"num_bits", 8},
                                               {"type", "int"},
                                               {"symmetric", true},
                                               {"strategy", "token"},
                                               {"dynamic", true}};
  return json::Object{{"quant_method", "compressed-tensors"},
                      {"format", "int-quantized"},
                      {"quantization_status", "compressed"},
                      {"config_groups",
                       json::Object{{"group_0", json::Object{{"targets", json::Array{"Linear"}},
                                                             {"weights", weights},
                                                             {"input_activations", activations}}}}},
                      {"ignore", json::Array{"lm_head"}}};
}

void write_w8a8(const std::string& from, const std::string& to, ThreadPool& pool,
                std::function<void(int64_t, int64_t)> progress) {
  const HfDirectory directory = open_hf_directory(from);
  const ModelConfig config =
      parse_model_config(directory.config, directory.generation_config, from);
  if (!config.quantization.is_null())
    fail("{}: expected weights that are not quantised yet, found a quantization_config", from);
  const auto stored = open_checkpoint(from);
  check_tensors(config.spec, *decoder_tensors(config.spec, *stored));
  std::vector<std::string> quantised;
  for (const StoredTensor& tensor : stored_tensors(config.spec)) {
    if (!takes_quantised(tensor.of.role) || tensor.shape.size() != 2) continue;
    if (stored->info(tensor.name).dtype != DType::bf16)
      fail("{}: expected BF16 beside which integers can be multiplied, found {}",
           stored->where(tensor.name), name_of(stored->info(tensor.name).dtype));
    quantised.push_back(tensor.name);
  }
  write_checkpoint(to, QuantisedSource(*stored, quantised, pool), pool,
                   {.progress = std::move(progress)});
  copy_texts(from, to);
  json::Value written = directory.config;
  written.set("quantization_config", w8a8_config());
  write_file_atomically((fs::path(to) / "config.json").string(), json::dump(written, 2));
}

}  // namespace invar
