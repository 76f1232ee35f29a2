#include "model/families/gguf_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "model/families/families.h"
#include "model/families/family.h"
#include "model/families/family_source.h"
#include "model/families/gguf_places.h"
#include "model/families/make_model.h"
#include "model/families/tensors.h"
#include "weights/checkpoint_writer.h"
#include "weights/gguf.h"
#include "weights/gguf_metadata.h"
#include "weights/hf_directory.h"
#include "weights/packed_formats.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

// Tensors of another source under other names, or as other types, or with their rows elsewhere.
class RenamedSource final : public TensorSource {
 public:
  // Rows of a tensor of the other source that stand together in both.
  struct Run {
    std::string name;
    int64_t first, rows;
  };
  struct Entry {
    TensorInfo info;
    std::vector<Run> runs;      // one behind the other
    bool is_minus_one = false;  // 1 is taken away from its elements, exactly
  };

  RenamedSource(const TensorSource& base, std::map<std::string, Entry, std::less<>> entries)
      : base_(base), entries_(std::move(entries)) {
    for (const auto& [name, entry] : entries_) names_.push_back(name);
  }

  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override { return entries_.contains(name); }
  const TensorInfo& info(std::string_view name) const override { return find(name).info; }
  std::string where(std::string_view name) const override {
    return base_.where(find(name).runs[0].name);
  }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const Entry& entry = find(name);
    const int64_t width = row_elements(entry.info), end = first + count;
    char* to = static_cast<char*>(out);
    int64_t begin = 0;
    for (const Run& run : entry.runs) {
      const int64_t of_run = run.rows * width;
      const int64_t from = std::max(first, begin), n = std::min(end, begin + of_run) - from;
      if (n > 0) {
        const int64_t at = run.first * width + from - begin;
        if (entry.is_minus_one)
          read_minus_one(run.name, at, n, as, to);
        else
          base_.read(run.name, at, n, as, to);
        to += bytes_of(as, n);
      }
      begin += of_run;
    }
  }

  // Of what runs are made of: all that the last dimension has.
  static int64_t row_elements(const TensorInfo& info) {
    return info.shape.size() < 2 ? 1 : info.shape.back();
  }

 private:
  const Entry& find(std::string_view name) const { return entries_.find(name)->second; }

  void read_minus_one(const std::string& name, int64_t first, int64_t count, DType as,
                      void* out) const {
    std::vector<float> values(static_cast<size_t>(count));
    base_.read(name, first, count, DType::f32, values.data());
    for (float& value : values) {
      const float less = value - 1.0f;
      if (1.0f + less != value)
        fail("{}: expected 1 + w with w an f32, found {}", base_.where(name), value);
      value = less;
    }
    convert_elements(values.data(), DType::f32, count, as, out);
  }

  const TensorSource& base_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> names_;
};
using Entries = std::map<std::string, RenamedSource::Entry, std::less<>>;

// ---- To GGUF

DType type_in_gguf(const TensorSpec& tensor, DType type) {
  if (tensor.shape.size() < 2 || is_gguf_router(tensor.role)) return DType::f32;
  const bool is_outside = tensor.role == TensorRole::embedding || tensor.role == TensorRole::head;
  if (is_outside && type != DType::bf16) type = DType::q8_0;
  for (const DType one : {type, DType::q8_0})
    if (tensor.shape.back() % storage_of(one).block == 0) return one;
  return DType::bf16;
}

bool turns(TensorRole role) {
  return role == TensorRole::q || role == TensorRole::k || role == TensorRole::q_bias ||
         role == TensorRole::k_bias;
}

// The decoder's rows in the order in which files have them.
std::vector<RenamedSource::Run> runs_in_gguf(const DecoderSpec& spec, const TensorSpec& tensor) {
  if (tensor.role == TensorRole::shared_expert_gate) return {{tensor.name, 0, tensor.shape[1]}};
  const bool is_row = tensor.expert >= 0 && tensor.shape.size() == 1;  // of all experts' biases
  if (!turns(tensor.role) || !has_gguf_neighbours(spec.family))
    return {{tensor.name, 0, is_row ? 1 : tensor.shape[0]}};
  const auto place = rotation_rows(spec, true);
  std::vector<RenamedSource::Run> runs(static_cast<size_t>(tensor.shape[0]));
  for (int64_t row = 0; row < tensor.shape[0]; ++row)
    runs[static_cast<size_t>(place(row))] = {tensor.name, row, 1};
  return runs;
}

std::vector<int64_t> shape_in_gguf(const DecoderSpec& spec, const TensorSpec& tensor) {
  if (tensor.role == TensorRole::shared_expert_gate) return {tensor.shape[1]};
  std::vector<int64_t> shape = tensor.shape;
  if (tensor.expert >= 0)
    shape.insert(shape.begin(), spec.layer(tensor.layer).experts->routing.experts);
  return shape;
}

// The tensors of a file, all experts' in one, and what they are made of.
Entries entries_of_gguf(const DecoderSpec& spec, const TensorSource& tensors, DType type,
                        std::vector<GgufItem>& items) {
  Entries entries;
  for (const TensorSpec& tensor : tensors_of(spec)) {
    const std::string name = gguf_name(spec, tensor);
    const auto [entry, is_new] = entries.try_emplace(name);
    if (is_new) {
      items.push_back({name, name, type_in_gguf(tensor, type)});
      entry->second.info = {tensors.info(tensor.name).dtype, shape_in_gguf(spec, tensor)};
    }
    std::ranges::move(runs_in_gguf(spec, tensor), std::back_inserter(entry->second.runs));
  }
  return entries;
}

// What stands in the way of reading the file as the model that it was made of, or nothing.
std::string not_read_back(const std::string& to, const ModelConfig& config) {
  try {
    const HfDirectory written = open_hf_directory(to);
    const ModelConfig found = parse_model_config(written.config, written.generation_config, to);
    return found.spec == config.spec ? "" : "some number is another";
  } catch (const Error& error) {
    return error.what();
  }
}

void check_read_back(const std::string& to, const ModelConfig& config, const std::string& from) {
  const std::string fault = not_read_back(to, config);
  if (fault.empty()) return;
  std::error_code ignored;
  fs::remove(to, ignored);
  fail("{}: a GGUF file of {} cannot say all of what its config.json says: {}", from,
       config.spec.family, fault);
}

// ---- To bf16

// A quantised model's matrices are bf16 ones; vectors stay as they are.
TensorInfo dequantised(TensorInfo info) {
  if (info.shape.size() >= 2) info.dtype = DType::bf16;
  return info;
}

// The decoder's rows that a tensor of a directory is made of.
std::vector<RenamedSource::Run> runs_in_directory(const StoredTensor& stored,
                                                  const DecoderSpec& spec) {
  const int64_t width = RenamedSource::row_elements({DType::f32, stored.shape});
  std::vector<std::pair<const TensorSpec*, int64_t>> rows(
      static_cast<size_t>(TensorInfo{DType::f32, stored.shape}.elements() / width));
  bool is_whole = true;
  for (const StoredTensor::Part& part : stored.parts) {
    is_whole &=
        !part.at.is_transposed && RenamedSource::row_elements({DType::f32, part.of.shape}) == width;
    for (int64_t row = 0; row < part.of.shape[0] && is_whole; ++row)
      rows.at(static_cast<size_t>(part.at.row ? part.at.row(row) : row)) = {&part.of, row};
  }
  std::vector<RenamedSource::Run> runs;
  for (const auto& [tensor, row] : rows) {
    is_whole &= tensor != nullptr;
    if (!is_whole)
      fail("models of the family {}, whose tensors stand in others, cannot be written from GGUF",
           spec.family);
    if (!runs.empty() && runs.back().name == tensor->name &&
        runs.back().first + runs.back().rows == row)
      ++runs.back().rows;
    else
      runs.push_back({tensor->name, row, 1});
  }
  return runs;
}

// Of a GGUF file under the names of a directory.
Entries entries_of_directory(const ModelConfig& config, const TensorSource& tensors) {
  Entries entries;
  for (const StoredTensor& stored : stored_tensors(config.spec))
    entries[stored.name] = {
        dequantised({tensors.info(stored.parts[0].of.name).dtype, stored.shape}),
        runs_in_directory(stored, config.spec), stored.parts[0].at.is_plus_one};
  return entries;
}

void write_gguf_as_directory(const HfDirectory& file, const std::string& to, ThreadPool& pool,
                             const Conversion& how) {
  const ModelConfig config =
      parse_model_config(file.config, file.generation_config, file.path, how.ignored_config_keys);
  const auto tensors = decoder_tensors(config.spec, open_checkpoint(file.path));
  check_tensors(config.spec, *tensors);
  if (!has_blocks(config.spec, *tensors))
    fail("{}: expected a model with matrices in blocks, found none", file.path);
  write_checkpoint(to, RenamedSource(*tensors, entries_of_directory(config, *tensors)), pool,
                   {.progress = how.progress});
  for (const auto& [name, text] : model_texts(file.path))
    write_file_atomically((fs::path(to) / name).string(), text);
}

void write_directory_as_bf16(const HfDirectory& directory, const std::string& to, ThreadPool& pool,
                             const Conversion& how) {
  const ModelConfig config = parse_model_config(directory.config, directory.generation_config,
                                                directory.path, how.ignored_config_keys);
  if (config.quantization.is_null())
    fail("{}: expected a quantised model, found no quantization_config", directory.path);
  const auto twin =
      quantised_tensors(open_checkpoint(directory.path), config.quantization, Quantised::as_twin);
  check_tensors(config.spec, *decoder_tensors(config.spec, *twin));
  write_checkpoint(to, *twin, pool, {.progress = how.progress});
  for (const auto& [name, text] : model_texts(directory.path))
    write_file_atomically((fs::path(to) / name).string(), text);
}

void write_configs(const HfDirectory& directory, const std::string& to) {
  json::Object config;
  for (const auto& [key, value] : directory.config.as_object())
    if (key != "quantization_config") config.emplace_back(key, value);
  if (!directory.generation_config.is_null())
    write_file_atomically((fs::path(to) / "generation_config.json").string(),
                          json::dump(directory.generation_config, 2));
  write_file_atomically((fs::path(to) / "config.json").string(), json::dump(config, 2));
}

}  // namespace

void write_gguf_model(const std::string& from, const std::string& to, DType type, ThreadPool& pool,
                      const Conversion& how) {
  const HfDirectory directory = open_hf_directory(from);
  ModelConfig config = parse_model_config(directory.config, directory.generation_config, from,
                                          how.ignored_config_keys);
  if (is_gguf(from) || !config.quantization.is_null())
    fail("{}: expected a directory of weights that are not quantised, found a quantised model",
         from);
  const auto tensors = decoder_tensors(config.spec, open_checkpoint(from));
  check_tensors(config.spec, *tensors);
  config.spec.mtp_layers = 0;
  const json::Value said = config_json(config);
  GgufContent content{gguf_model_keys(said, from), {}};
  std::ranges::move(gguf_tokenizer_keys(model_texts(from), said, from),
                    std::back_inserter(content.metadata));
  Entries entries = entries_of_gguf(config.spec, *tensors, type, content.tensors);
  write_gguf(to, content, RenamedSource(*tensors, std::move(entries)), pool, how.progress);
  check_read_back(to, config, from);
}

void write_dequantised(const std::string& from, const std::string& to, ThreadPool& pool,
                       const Conversion& how) {
  const HfDirectory directory = open_hf_directory(from);
  if (is_gguf(from))
    write_gguf_as_directory(directory, to, pool, how);
  else
    write_directory_as_bf16(directory, to, pool, how);
  write_configs(directory, to);
}

}  // namespace invar
