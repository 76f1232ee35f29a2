#include "model/families/gguf_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "base/atomic_file.h"
#include "base/error.h"
#include "model/families/families.h"
#include "model/families/family.h"
#include "model/families/family_source.h"
#include "model/families/gguf_places.h"
#include "model/families/make_model.h"
#include "model/families/said_sampling.h"
#include "model/families/tensors.h"
#include "numerics/math.h"
#include "weights/checkpoint_writer.h"
#include "weights/gguf.h"
#include "weights/gguf_metadata.h"
#include "weights/hf_directory.h"
#include "weights/packed_formats.h"
#include "weights/source_bases.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

// Rows of a tensor of the other source that stand together in both. Or columns of it, and of
// another one in turn with them.
struct RenamedRun {
  int name, other;  // in RenamedEntry::names; -1: there is none
  int64_t first, rows;
  bool is_turned;
};
struct RenamedEntry {
  TensorInfo info;
  int64_t width = 1;             // elements of a row
  std::vector<RenamedRun> runs;  // one behind the other
  std::vector<std::string> names;
  bool is_minus_one = false;    // 1 is taken away from its elements, exactly
  bool is_exponential = false;  // it is -exp of them
  float factor = 1;             // they are its elements times this
  std::vector<float> numbers;   // its elements, where it is made of no other tensor
};

// Tensors of another source under other names, or as other types, or with their rows elsewhere.
class RenamedSource final : public ListedTensors<RenamedEntry> {
 public:
  using Run = RenamedRun;
  using Entry = RenamedEntry;

  RenamedSource(const TensorSource& base, std::map<std::string, Entry, std::less<>> entries)
      : base_(base) {
    entries_ = std::move(entries);
    list_names();
  }

  std::string where(std::string_view name) const override {
    const Entry& entry = find(name);
    return entry.names.empty() ? std::string(name) : base_.where(entry.names[0]);
  }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const Entry& entry = find(name);
    const int64_t width = entry.width, end = first + count;
    char* to = static_cast<char*>(out);
    if (!entry.numbers.empty())
      return convert_elements(entry.numbers.data() + first, DType::f32, count, as, out);
    int64_t begin = 0;
    for (const Run& run : entry.runs) {
      const int64_t of_run = run.rows * width;
      const int64_t from = std::max(first, begin), n = std::min(end, begin + of_run) - from;
      if (n > 0) {
        const int64_t at = run.first * width + from - begin;
        const std::string& of = entry.names[static_cast<size_t>(run.name)];
        if (run.is_turned)
          std::memcpy(to, turned(entry, run, as)->data() + bytes_of(as, at),
                      static_cast<size_t>(bytes_of(as, n)));
        else if (entry.is_minus_one)
          read_minus_one(of, at, n, as, to);
        else if (entry.is_exponential)
          read_exponentials(of, at, n, as, to);
        else if (entry.factor != 1)
          read_quotients(of, entry.factor, at, n, as, to);
        else
          base_.read(of, at, n, as, to);
        to += bytes_of(as, n);
      }
      begin += of_run;
    }
  }

 private:
  // A tensor turned over, whose rows are its columns, each element before its place's of the other
  // one. Kept for all threads that take rows of it.
  using Bytes = std::shared_ptr<const std::vector<char>>;
  Bytes turned(const Entry& entry, const Run& run, DType as) const {
    const std::string& name = entry.names[static_cast<size_t>(run.name)];
    const std::pair key(name, as);
    const std::lock_guard lock(turning_);
    for (auto one = kept_.begin(); one != kept_.end(); ++one)
      if (one->first == key) {
        kept_.splice(kept_.begin(), kept_, one);
        return kept_.front().second;
      }
    std::vector<const std::string*> all{&name};
    if (run.other >= 0) all.push_back(&entry.names[static_cast<size_t>(run.other)]);
    const TensorInfo& info = base_.info(name);
    const int64_t rows = info.shape[0], columns = info.shape[1], size = bytes_of(as, 1);
    const int64_t step = std::ssize(all);
    std::vector<char> made(static_cast<size_t>(step * info.elements() * size));
    std::vector<char> row(static_cast<size_t>(columns * size));
    for (int64_t t = 0; t < step; ++t)
      for (int64_t i = 0; i < rows; ++i) {
        base_.read_rows(*all[static_cast<size_t>(t)], i, 1, as, row.data());
        for (int64_t c = 0; c < columns; ++c)
          std::memcpy(made.data() + ((c * rows + i) * step + t) * size, row.data() + c * size,
                      static_cast<size_t>(size));
      }
    kept_.emplace_front(key, std::make_shared<const std::vector<char>>(std::move(made)));
    if (kept_.size() > kKept) kept_.pop_back();
    return kept_.front().second;
  }

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

  void read_exponentials(const std::string& name, int64_t first, int64_t count, DType as,
                         void* out) const {
    std::vector<float> values(static_cast<size_t>(count));
    base_.read(name, first, count, DType::f32, values.data());
    for (float& value : values) value = -math::exp(value);
    convert_elements(values.data(), DType::f32, count, as, out);
  }

  // The numbers whose products by `factor` are there, bf16 ones where there are such.
  void read_quotients(const std::string& name, float factor, int64_t first, int64_t count, DType as,
                      void* out) const {
    std::vector<float> values(static_cast<size_t>(count));
    base_.read(name, first, count, DType::f32, values.data());
    for (float& value : values) {
      const float quotient = value / factor, infinity = std::numeric_limits<float>::infinity();
      const float candidates[] = {bf16_to_f32(f32_to_bf16(quotient)), quotient,
                                  std::nextafter(quotient, infinity),
                                  std::nextafter(quotient, -infinity)};
      const auto is_it = [&](float candidate) { return candidate * factor == value; };
      const auto* found = std::ranges::find_if(candidates, is_it);
      if (found == std::end(candidates))
        fail("{}: expected a product by {}, found {}", base_.where(name), factor, value);
      value = *found;
    }
    convert_elements(values.data(), DType::f32, count, as, out);
  }

  const TensorSource& base_;
  static constexpr size_t kKept = 8;
  mutable std::mutex turning_;
  mutable std::list<std::pair<std::pair<std::string, DType>, Bytes>> kept_;
};
using Entries = std::map<std::string, RenamedSource::Entry, std::less<>>;

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

DType type_in_gguf(const TensorSpec& tensor, DType type) {
  if (tensor.shape.size() < 2 || is_gguf_router(tensor.role)) return DType::f32;
  const bool is_outside = tensor.role == TensorRole::embedding ||
                          tensor.role == TensorRole::layer_input_embedding ||
                          tensor.role == TensorRole::head;
  if (is_outside && type != DType::bf16) type = DType::q8_0;
  for (const DType one : {type, DType::q8_0})
    if (tensor.shape.back() % storage_of(one).block == 0) return one;
  return DType::bf16;
}

// The tensors of a file, and what they are made of.
Entries entries_of_gguf(const DecoderSpec& spec, const TensorSource& tensors, DType type,
                        std::vector<GgufItem>& items) {
  Entries entries;
  for (const StoredTensor& stored : gguf_tensors(spec)) {
    const TensorSpec& tensor = stored.parts[0].of;
    items.push_back({stored.name, stored.name, type_in_gguf(tensor, type)});
    RenamedSource::Entry& entry = entries[stored.name];
    entry = entry_of(stored, tensors.info(tensor.name).dtype, spec);
    entry.is_exponential = stored.parts[0].at.is_exponential;
    entry.factor = stored.parts[0].at.scale;
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

// A quantised model's matrices are bf16 ones; vectors stay as they are.
TensorInfo dequantised(TensorInfo info) {
  if (info.shape.size() >= 2) info.dtype = DType::bf16;
  return info;
}

// The entries of a GGUF file under the names of a directory.
Entries entries_of_directory(const ModelConfig& config, const TensorSource& tensors) {
  Entries entries;
  for (const StoredTensor& stored : stored_tensors(config.spec)) {
    const TensorInfo info = tensors.info(stored.parts[0].of.name);
    RenamedSource::Entry& entry = entries[stored.name];
    entry = entry_of(stored, dequantised({info.dtype, stored.shape}).dtype, config.spec);
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
  const auto tensors =
      with_columns(decoder_tensors(config.spec, open_checkpoint(from)), gguf_columns(config.spec));
  check_tensors(spec_of_stored(config.spec, *tensors), *tensors);
  config.spec.mtp_layers = 0;
  const json::Value said = config_json(config);
  GgufContent content{gguf_model_keys(said, from), {}};
  std::ranges::move(gguf_tokenizer_keys(model_texts(from), said, from),
                    std::back_inserter(content.metadata));
  std::ranges::move(gguf_sampling_keys(directory.generation_config),
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
