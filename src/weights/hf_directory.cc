#include "weights/hf_directory.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "base/input_file.h"
#include "weights/checkpoint_writer.h"
#include "weights/gguf_texts.h"
#include "weights/raw_tensors.h"
#include "weights/safetensors.h"
#include "weights/source_bases.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kGguf = ".gguf";
constexpr int64_t kConverted = 1 << 14;  // elements converted at a time
constexpr json::ParseLimits kConfigLimits = {.max_depth = 32, .max_bytes = 16 << 20};

std::string join(const std::string& directory, std::string_view name) {
  return (fs::path(directory) / name).string();
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

json::Value parse_object(const std::string& path, const json::ParseLimits& limits) {
  json::Value value = json::parse_file(path, limits);
  if (!value.is_object()) fail("{}: expected a JSON object, found {}", path, value.type_name());
  return value;
}

// Files have the names of numerics/storage.h in capitals.
std::optional<DType> element_type(std::string_view dtype) {
  const auto capital = [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; };
  for (const StorageType& type : kStorageTypes)
    if (!type.has_blocks() && std::ranges::equal(std::string_view(type.name), dtype, {}, capital))
      return type.type;
  return std::nullopt;
}

// safetensors has no dtype for blocks: their bytes are U8, and the metadata says what they are
// (checkpoint_writer.h).
const StorageType* block_type(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
  if (tensor.dtype != "U8") return nullptr;
  const std::string key = std::string(kStorageKey) + tensor.name;
  for (const auto& [name, value] : file.header().metadata)
    for (const StorageType& type : kStorageTypes)
      if (name == key && type.has_blocks() && value == type.name) return &type;
  return nullptr;
}

// Bytes of MXFP4 (mxfp4_source.h).
bool are_mxfp4(const SafetensorsTensor& tensor) {
  return tensor.dtype == "U8" &&
         (tensor.name.ends_with("_blocks") || tensor.name.ends_with("_scales"));
}

// The elements that a tensor of bytes holds.
TensorInfo info_of_blocks(const SafetensorsFile& file, const SafetensorsTensor& tensor,
                          const StorageType& type) {
  TensorInfo info{type.type, tensor.shape};
  if (info.shape.empty() || info.shape.back() % type.bytes() != 0)
    fail("{}: tensor {}: expected rows of whole {} blocks of {} bytes, found rows of {}",
         file.path(), json::quoted(tensor.name), type.name, type.bytes(),
         info.shape.empty() ? 1 : info.shape.back());
  info.shape.back() = info.shape.back() / type.bytes() * type.block;
  return info;
}

struct FileEntry {
  const SafetensorsFile* file;
  const SafetensorsTensor* tensor;
  bool is_float;  // a type that weights can have; otherwise info.dtype means nothing
  TensorInfo info;
};

class FileSource : public ListedTensors<FileEntry>, public RawTensors {
 public:
  FileSource(const std::string& directory, std::vector<SafetensorsFile> files)
      : directory_(directory), files_(std::move(files)) {
    for (const SafetensorsFile& file : files_)
      for (const SafetensorsTensor& tensor : file.tensors()) add(file, tensor);
    list_names();
  }

  const TensorInfo& info(std::string_view name) const override {
    const FileEntry& entry = find(name);
    if (!entry.is_float)
      fail("{}: expected elements of BF16, F16 or F32, found {}", where(name), entry.tensor->dtype);
    return entry.info;
  }

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const TensorInfo& info = this->info(name);
    CHECK(first >= 0 && count >= 0 && first + count <= info.elements(), "read outside a tensor");
    const FileEntry& entry = find(name);
    const int64_t in_block = storage_of(info.dtype).block;
    CHECK(first % in_block == 0 && count % in_block == 0, "a part of a block is read");
    const auto bytes = [&](int64_t n) { return static_cast<size_t>(bytes_of(info.dtype, n)); };
    auto* target = static_cast<std::byte*>(out);
    if (info.dtype == as)
      return entry.file->read(*entry.tensor, bytes_of(as, first), {target, bytes(count)});
    std::byte block[kConverted * sizeof(float)];
    for (int64_t i = 0; i < count; i += kConverted) {
      const int64_t n = std::min(kConverted, count - i);
      entry.file->read(*entry.tensor, bytes_of(info.dtype, first + i),
                       std::span(block).first(bytes(n)));
      convert_elements(block, info.dtype, n, as, target + i * size_of(as));
    }
  }

  RawTensor read_raw(std::string_view name, bool with_bytes) const override {
    const FileEntry& entry = find(name);
    RawTensor raw{entry.tensor->dtype, entry.tensor->shape, {}};
    if (!with_bytes) return raw;
    raw.bytes.resize(static_cast<size_t>(entry.tensor->end - entry.tensor->begin));
    entry.file->read(*entry.tensor, 0, raw.bytes);
    return raw;
  }

  std::string where(std::string_view name) const override {
    const auto entry = entries_.find(name);
    const std::string& file = entry == entries_.end() ? directory_ : entry->second.file->path();
    return fmt::format("{}: tensor {}", file, json::quoted(name));
  }

 private:
  void add(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
    const std::optional<DType> dtype = element_type(are_mxfp4(tensor) ? "I8" : tensor.dtype);
    const StorageType* blocks = block_type(file, tensor);
    const TensorInfo info = blocks ? info_of_blocks(file, tensor, *blocks)
                                   : TensorInfo{dtype.value_or(DType::bf16), tensor.shape};
    const bool is_float = dtype || blocks;
    const auto [entry, is_new] =
        entries_.try_emplace(tensor.name, FileEntry{&file, &tensor, is_float, info});
    if (!is_new)
      fail("{}: tensor {} stands in {} too", file.path(), json::quoted(tensor.name),
           entry->second.file->path());
  }

  std::string directory_;
  std::vector<SafetensorsFile> files_;
};

// A shard's name comes from outside: it must stay inside the directory. (It may be a symbolic link
// that does not: that is how the Hugging Face cache stores files.)
void check_shard_name(const std::string& name, const std::string& index) {
  const fs::path path(name);
  bool inside = !name.empty() && path.is_relative() && name.find('\0') == std::string::npos;
  for (const fs::path& step : path) inside &= step != "..";
  if (!inside)
    fail("{}: expected shards inside the directory, found {}", index, json::quoted(name));
}

struct Index {
  std::map<std::string, std::string, std::less<>> shard_of;  // tensor -> shard
  std::map<std::string, size_t> shards;  // shard -> its place in the list of files
};

Index read_index(const std::string& path) {
  const json::Value root = parse_object(path, {});
  const json::Value* weight_map = root.find("weight_map");
  if (!weight_map || !weight_map->is_object())
    fail("{}: expected an object as weight_map, found {}", path,
         weight_map ? weight_map->type_name() : "nothing");
  Index index;
  for (const auto& [tensor, shard] : weight_map->as_object()) {
    if (!shard.is_string())
      fail("{}: expected a file name for tensor {}, found {}", path, json::quoted(tensor),
           shard.type_name());
    check_shard_name(shard.as_string(), path);
    index.shard_of[tensor] = shard.as_string();
    index.shards[shard.as_string()] = 0;
  }
  if (index.shards.empty()) fail("{}: the weight_map is empty", path);
  return index;
}

std::set<std::string_view> names_in(const SafetensorsFile& file) {
  std::set<std::string_view> names;
  for (const SafetensorsTensor& tensor : file.tensors()) names.insert(tensor.name);
  return names;
}

std::vector<SafetensorsFile> open_shards(const std::string& directory) {
  const std::string index_path = join(directory, kIndexFile);
  Index index = read_index(index_path);
  std::vector<SafetensorsFile> files;
  for (auto& [shard, place] : index.shards) {
    const std::string path = join(directory, shard);
    if (!exists(path)) fail("{}: the shard {} is missing", index_path, json::quoted(shard));
    place = files.size();
    files.emplace_back(path);
  }
  std::vector<std::set<std::string_view>> names;
  for (const SafetensorsFile& file : files) names.push_back(names_in(file));
  for (const auto& [tensor, shard] : index.shard_of)
    if (!names[index.shards[shard]].contains(tensor))
      fail("{}: tensor {} is not in {}, where the index has it", index_path, json::quoted(tensor),
           json::quoted(shard));
  // An index that is not all of its shards belongs to other ones, or was cut.
  for (const auto& [shard, place] : index.shards)
    for (const std::string_view tensor : names[place])
      if (!index.shard_of.contains(tensor))
        fail("{}: expected every tensor of {} in the weight_map, found no {}", index_path,
             json::quoted(shard), json::quoted(tensor));
  return files;
}

std::vector<SafetensorsFile> open_files(const std::string& directory) {
  std::vector<SafetensorsFile> files;
  if (exists(join(directory, kSingleFile)))
    files.emplace_back(join(directory, kSingleFile));
  else if (exists(join(directory, kIndexFile)))
    files = open_shards(directory);
  else
    fail("{}: expected weights in {} or {}, found neither{}", directory, kSingleFile, kIndexFile,
         exists(join(directory, "pytorch_model.bin"))
             ? " (pytorch_model.bin is not read: save it as safetensors)"
             : "");
  return files;
}

bool has_gguf(const std::string& directory) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    if (entry.path().extension() == kGguf) return true;
  return false;
}

}  // namespace

HfDirectory open_hf_directory(const std::string& path) {
  std::error_code ignored;
  if (is_gguf(path)) {
    const GgufFile file(path);
    return {path, gguf_config(file), gguf_generation_config(file)};
  }
  if (!fs::is_directory(path, ignored))
    fail("{}: expected a model directory, found {}", path,
         exists(path) ? "a file; of files GGUF's are read"
                      : "nothing; invar pull fetches a model of the hub");
  const std::string config = join(path, "config.json");
  if (!exists(config))
    fail("{}: not a model directory: it has no config.json{}", path,
         has_gguf(path) ? "; name the GGUF file in it" : "");
  HfDirectory result{path, parse_object(config, kConfigLimits), {}};
  const std::string generation = join(path, "generation_config.json");
  if (exists(generation)) result.generation_config = parse_object(generation, kConfigLimits);
  return result;
}

std::map<std::string, std::string> model_texts(const std::string& model) {
  std::map<std::string, std::string> texts;
  if (is_gguf(model)) {
    for (auto& [name, text] : gguf_tokenizer_texts(GgufFile(model))) texts[name] = std::move(text);
    return texts;
  }
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "tekken.json", "chat_template.jinja"})
    if (const std::string path = join(model, name); exists(path))
      texts[name] = read_whole_file(path);
  return texts;
}

std::unique_ptr<TensorSource> open_checkpoint(const std::string& directory) {
  if (is_gguf(directory)) return open_gguf_tensors(std::make_shared<GgufFile>(directory));
  return std::make_unique<FileSource>(directory, open_files(directory));
}

std::unique_ptr<TensorSource> open_tensors(const std::string& directory, const std::string& file) {
  std::vector<SafetensorsFile> files;
  files.emplace_back(join(directory, file));
  return std::make_unique<FileSource>(directory, std::move(files));
}

}  // namespace invar
