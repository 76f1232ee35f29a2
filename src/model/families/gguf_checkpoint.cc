#include "model/families/gguf_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "model/families/families.h"
#include "model/families/family.h"
#include "model/families/family_source.h"
#include "model/families/gguf_folding.h"
#include "model/families/gguf_places.h"
#include "model/families/make_model.h"
#include "model/families/renamed_source.h"
#include "model/families/said_sampling.h"
#include "model/families/tensors.h"
#include "weights/checkpoint_writer.h"
#include "weights/gguf.h"
#include "weights/gguf_metadata.h"
#include "weights/hf_directory.h"
#include "weights/packed_formats.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

using Entries = RenamedSource::Entries;

// Which row of which tensor a row of a file's is; or which column, and in turn with which other's.
struct Origin {
  int part = -1, other = -1;
  int64_t row = 0;
};

// Whether rows of `width` elements can be made of the part's.
bool fits(const StoredTensor::Part& part, int64_t width) {
  if (!part.at.is_transposed) return TensorInfo{DType::f32, part.of.shape}.row_elements() == width;
  return part.at.step <= 2 && part.of.shape[0] * part.at.step == width;
}

// The origins of all rows of the file's tensor; nothing where its rows are no whole ones of others.
std::vector<Origin> origins_of(const StoredTensor& stored, int64_t width) {
  std::vector<Origin> rows(
      static_cast<size_t>(TensorInfo{DType::f32, stored.shape}.elements() / width));
  for (size_t i = 0; i < stored.parts.size(); ++i) {
    const StoredTensor::Part& part = stored.parts[i];
    const StoredAt& at = part.at;
    if (!fits(part, width)) return {};
    for (int64_t row = 0; row < part.of.shape[at.is_transposed ? 1 : 0]; ++row) {
      const int64_t to = at.is_transposed ? at.row(0) + row : at.row ? at.row(row) : row;
      Origin& origin = rows.at(static_cast<size_t>(to));
      (at.column == 0 ? origin.part : origin.other) = static_cast<int>(i);
      origin.row = row;
    }
  }
  const auto is_whole = [&](const Origin& origin) {
    return origin.part >= 0 &&
           (origin.other >= 0) == (stored.parts[static_cast<size_t>(origin.part)].at.step == 2);
  };
  return std::ranges::all_of(rows, is_whole) ? rows : std::vector<Origin>();
}

// The decoder's rows that a tensor of a file is made of.
RenamedSource::Entry entry_of(const StoredTensor& stored, DType type, const DecoderSpec& spec) {
  const StoredTensor::Part& first = stored.parts[0];
  RenamedSource::Entry entry{{type, stored.shape}};
  entry.width = first.at.is_transposed ? stored.shape.back()
                                       : TensorInfo{type, first.of.shape}.row_elements();
  const std::vector<Origin> origins = origins_of(stored, entry.width);
  if (origins.empty())
    fail("models of the family {}, whose tensors stand in others, cannot be written from GGUF",
         spec.family);
  for (const StoredTensor::Part& part : stored.parts) entry.names.push_back(part.of.name);
  std::vector<RenamedSource::Run>& runs = entry.runs;
  for (const auto& [part, other, row] : origins) {
    if (!runs.empty() && runs.back().name == part && runs.back().first + runs.back().rows == row)
      ++runs.back().rows;
    else
      runs.push_back(
          {part, other, row, 1, stored.parts[static_cast<size_t>(part)].at.is_transposed});
  }
  return entry;
}

// ---- To GGUF

DType type_in_gguf(const DecoderSpec& spec, const TensorSpec& tensor, DType type) {
  if (tensor.shape.size() < 2 || is_gguf_router(tensor.role) || is_gguf_folded(spec, tensor))
    return DType::f32;
  const bool is_outside = tensor.role == TensorRole::embedding ||
                          tensor.role == TensorRole::layer_input_embedding ||
                          tensor.role == TensorRole::head;
  if (is_outside && type != DType::bf16) type = DType::q8_0;
  for (const DType one : {type, DType::q8_0})
    if (tensor.shape.back() % storage_of(one).block == 0) return one;
  return DType::bf16;
}

// The tensors of a file, and what they are made of.
Entries entries_of_gguf(const GgufFolding& folding, const TensorSource& tensors, DType type,
                        std::vector<GgufItem>& items) {
  Entries entries;
  const DecoderSpec& spec = folding.said;
  for (const StoredTensor& stored : gguf_tensors(spec)) {
    const auto& [tensor, at] = stored.parts[0];
    items.push_back({stored.name, stored.name, type_in_gguf(spec, tensor, type)});
    RenamedSource::Entry& entry = entries[stored.name];
    entry = entry_of(stored, tensors.info(tensor.name).dtype, spec);
    entry.is_exponential = at.is_exponential;
    entry.multiplier = folding.multiplier_of(tensor.role);
    if (entry.multiplier == 1) entry.factor = at.scale;
  }
  for (GgufConstant& constant : gguf_constants(spec)) {
    items.push_back({constant.name, constant.name, DType::f32});
    RenamedSource::Entry& entry = entries[constant.name];
    entry.info = {DType::f32, {std::ssize(constant.numbers)}};
    entry.numbers = std::move(constant.numbers);
  }
  return entries;
}

// Says why the file cannot be read as the model that it was made of, or nothing.
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

// The entries of a GGUF file under the names of a directory: its matrices are bf16 ones; vectors
// stay as they are.
Entries entries_of_directory(const ModelConfig& config, const TensorSource& tensors) {
  Entries entries;
  for (const StoredTensor& stored : stored_tensors(config.spec)) {
    const DType type = tensors.info(stored.parts[0].of.name).dtype;
    RenamedSource::Entry& entry = entries[stored.name];
    entry = entry_of(stored, stored.shape.size() < 2 ? type : DType::bf16, config.spec);
    entry.is_minus_one = stored.parts[0].at.is_plus_one;
    entry.factor = stored.parts[0].at.scale;
  }
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
  const auto tensors = decoder_tensors(config.spec, *twin);
  check_tensors(spec_of_stored(config.spec, *tensors), *tensors);
  write_checkpoint(to, *twin, pool, {.progress = how.progress});
  for (const auto& [name, text] : model_texts(directory.path))
    write_file_atomically((fs::path(to) / name).string(), text);
}

// The directory has what the file has, also where that is what its family's publisher recommends.
json::Value generation_config_of(const HfDirectory& model) {
  if (!is_gguf(model.path)) return model.generation_config;
  const ModelConfig config = parse_model_config(model.config, model.generation_config, model.path);
  json::Value all = model.generation_config;
  const SaidSampling said = said_sampling(model, config.spec.family);
  for (const auto& [name, value] : said.config.as_object()) all.set(name, value);
  return all;
}

void write_configs(const HfDirectory& directory, const std::string& to) {
  json::Object config;
  for (const auto& [key, value] : directory.config.as_object())
    if (key != "quantization_config") config.emplace_back(key, value);
  if (const json::Value generation = generation_config_of(directory); !generation.is_null())
    write_file_atomically((fs::path(to) / "generation_config.json").string(),
                          json::dump(generation, 2));
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
  const GgufFolding folding = folded_for_gguf(config.spec, type, from);
  const auto tensors =
      with_columns(decoder_tensors(config.spec, open_checkpoint(from)), gguf_columns(config.spec));
  check_tensors(spec_of_stored(config.spec, *tensors), *tensors);
  config.spec = folding.said;
  const json::Value said = config_json(config);
  GgufContent content{gguf_model_keys(said, from), {}};
  std::ranges::copy(folding.keys, std::back_inserter(content.metadata));
  std::ranges::move(gguf_tokenizer_keys(model_texts(from), said, from),
                    std::back_inserter(content.metadata));
  std::ranges::move(gguf_sampling_keys(directory.generation_config),
                    std::back_inserter(content.metadata));
  Entries entries = entries_of_gguf(folding, *tensors, type, content.tensors);
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
