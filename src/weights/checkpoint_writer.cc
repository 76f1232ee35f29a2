#include "weights/checkpoint_writer.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <tuple>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kInHand = 1 << 17;  // elements that one thread has in hand
constexpr int64_t kAlignment = 64;    // of the first tensor's bytes

struct Item {
  std::string name;
  TensorInfo info;
  const IntegerTensor* integers = nullptr;  // instead of the source's

  // Bytes of an element, or of one that is stored in blocks, rounded down.
  int64_t element_bytes() const {
    return integers ? int64_t{sizeof(int64_t)} : storage().bytes() / storage().block;
  }
  int64_t bytes() const {
    return integers ? info.elements() * element_bytes() : bytes_of(info.dtype, info.elements());
  }
  const StorageType& storage() const { return storage_of(info.dtype); }
};

using Shard = std::vector<Item>;

int64_t bytes_in(const Shard& shard) {
  int64_t total = 0;
  for (const Item& item : shard) total += item.bytes();
  return total;
}

std::vector<Shard> cut_into_shards(const TensorSource& source,
                                   const std::vector<IntegerTensor>& integers, int64_t max_bytes) {
  std::vector<Item> items;
  for (const IntegerTensor& tensor : integers)
    items.push_back({tensor.name, {.shape = {std::ssize(tensor.values)}}, &tensor});
  for (const std::string& name : source.names()) items.push_back({name, source.info(name)});
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.element_bytes() > b.element_bytes();
  });
  std::vector<Shard> shards(1);
  int64_t filled = 0;
  for (Item& item : items) {
    if (filled > 0 && filled + item.bytes() > max_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += item.bytes();
    shards.back().push_back(std::move(item));
  }
  return shards;
}

const char* dtype_name(const Item& item, const char* byte_type) {
  const DType type = item.info.dtype;
  if (item.integers) return "I64";
  if (item.storage().has_blocks()) return "U8";
  if (type == DType::i8) return byte_type;
  return type == DType::bf16 ? "BF16" : type == DType::f16 ? "F16" : "F32";
}

// The shape of blocks is in bytes.
json::Array shape_of(const Item& item) {
  json::Array shape(item.info.shape.begin(), item.info.shape.end());
  if (item.storage().has_blocks()) shape.back() = bytes_of(item.info.dtype, item.info.shape.back());
  return shape;
}

json::Object metadata_of(const Shard& shard) {
  json::Object metadata{{"format", "pt"}};
  for (const Item& item : shard)
    if (item.storage().has_blocks())
      metadata.emplace_back(kStorageKey + item.name, item.storage().name);
  return metadata;
}

// Size and JSON, padded with spaces so that the tensors' bytes begin aligned.
std::string header_of(const Shard& shard, const char* byte_type) {
  json::Value root = json::Object{{"__metadata__", metadata_of(shard)}};
  int64_t begin = 0;
  for (const Item& item : shard) {
    const int64_t end = begin + item.bytes();
    root.as_object().emplace_back(item.name,
                                  json::Object{{"dtype", dtype_name(item, byte_type)},
                                               {"shape", shape_of(item)},
                                               {"data_offsets", json::Array{begin, end}}});
    begin = end;
  }
  std::string text = json::dump(root);
  const int64_t size = std::ssize(text) + 8;
  text.append((size + kAlignment - 1) / kAlignment * kAlignment - size, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

class Writer {
 public:
  Writer(const TensorSource& source, ThreadPool& pool, const CheckpointOptions& options)
      : source_(source), pool_(pool), options_(options) {}

  void set_total(int64_t bytes) { total_ = bytes; }

  AtomicFile write(const std::string& path, const Shard& shard) {
    const std::string header = header_of(shard, options_.byte_type);
    int64_t offset = std::ssize(header);
    AtomicFile file(path, offset + bytes_in(shard));
    file.write_at(0, std::as_bytes(std::span(header)));
    for (const Item& item : shard) {
      write_tensor(file, offset, item);
      offset += item.bytes();
    }
    return file;
  }

 private:
  void write_tensor(AtomicFile& file, int64_t offset, const Item& item) {
    if (item.integers)
      file.write_at(offset, std::as_bytes(std::span(item.integers->values)));
    else
      write_elements(file, offset, item);
    done_ += item.bytes();
    if (options_.progress) options_.progress(done_, total_);
  }

  void write_elements(AtomicFile& file, int64_t offset, const Item& item) {
    run_or_throw(pool_, [&](Part part) {
      const auto bytes = [&](int64_t n) { return bytes_of(item.info.dtype, n); };
      const auto run = part.of(item.info.elements(), kInHand);
      std::vector<std::byte> block(bytes(std::min(kInHand, run.end - run.begin)));
      for (int64_t i = run.begin; i < run.end; i += kInHand) {
        const int64_t count = std::min(kInHand, run.end - i);
        source_.read(item.name, i, count, item.info.dtype, block.data());
        file.write_at(offset + bytes(i), std::span(block).first(bytes(count)));
      }
    });
  }

  const TensorSource& source_;
  ThreadPool& pool_;
  const CheckpointOptions& options_;
  int64_t done_ = 0, total_ = 0;
};

std::string shard_name(size_t index, size_t count) {
  return count == 1 ? "model.safetensors"
                    : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

void write_index(const std::string& path, const std::vector<Shard>& shards) {
  json::Object weight_map;
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const Item& item : shards[i])
      weight_map.emplace_back(item.name, shard_name(i, shards.size()));
    total += bytes_in(shards[i]);
  }
  write_file_atomically(path,
                        json::dump(json::Object{{"metadata", json::Object{{"total_size", total}}},
                                                {"weight_map", std::move(weight_map)}},
                                   2));
}

void prepare_directory(const fs::path& directory) {
  make_directories(directory.string());
  std::error_code error;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
    if (fs::exists(directory / name, error))
      fail("{}: expected a directory without weights, found {}", directory.string(), name);
}

}  // namespace

void write_checkpoint(const std::string& directory, const TensorSource& source, ThreadPool& pool,
                      const CheckpointOptions& options) {
  prepare_directory(directory);
  const std::vector<Shard> shards =
      cut_into_shards(source, options.integers, options.max_shard_bytes);
  Writer writer(source, pool, options);
  int64_t total = 0;
  for (const Shard& shard : shards) total += bytes_in(shard);
  writer.set_total(total);

  std::vector<AtomicFile> files;
  for (size_t i = 0; i < shards.size(); ++i)
    files.push_back(
        writer.write((fs::path(directory) / shard_name(i, shards.size())).string(), shards[i]));
  for (AtomicFile& file : files) file.commit();
  if (shards.size() > 1)
    write_index((fs::path(directory) / "model.safetensors.index.json").string(), shards);
}

void write_tensors(const std::string& path, const TensorSource& source, ThreadPool& pool) {
  const CheckpointOptions options;
  const std::vector<Shard> one = cut_into_shards(source, {}, INT64_MAX);
  Writer writer(source, pool, options);
  writer.write(path, one.front()).commit();
}

}  // namespace invar
