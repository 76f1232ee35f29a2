#include "weight_spool.h"

#include <stdlib.h>

#include <cstring>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json.h"

namespace invar::server {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostTensors = 1 << 20;

// The names in the header of a safetensors file: its length in 8 bytes, then an object.
std::vector<std::string> names_in(const std::string& bytes) {
  constexpr size_t kLength = 8;
  uint64_t length = 0;
  if (bytes.size() >= kLength) std::memcpy(&length, bytes.data(), kLength);
  if (bytes.size() < kLength || length > bytes.size() - kLength)
    fail_usage("expected a piece of safetensors, found {} bytes without its header", bytes.size());
  const json::Value header =
      json::parse(std::string_view(bytes).substr(kLength, length), "a header of safetensors");
  if (!header.is_object())
    fail_usage("expected the header of safetensors as an object, found {}", header.type_name());
  std::vector<std::string> names;
  for (const auto& [name, info] : header.as_object())
    if (name != "__metadata__") names.push_back(name);
  if (names.empty()) fail_usage("expected tensors in a piece of safetensors, found none");
  return names;
}

bool is_weights(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         name.ends_with(".bin") || name.ends_with(".gguf");
}

}  // namespace

WeightSpool::WeightSpool(const Options& options) : options_(options) {
  const fs::path parent =
      options.parent.empty() ? fs::temp_directory_path() : fs::path(options.parent);
  std::string name = (parent / "invar-weights-XXXXXX").string();
  if (!::mkdtemp(name.data()))
    fail("{}: no directory for weights can be made: {}", parent.string(), std::strerror(errno));
  directory_ = name;
}

WeightSpool::~WeightSpool() {
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

WeightSpool::Counts WeightSpool::add(const std::string& safetensors) {
  const std::vector<std::string> names = names_in(safetensors);
  const std::lock_guard lock(mutex_);
  if (bytes_ + safetensors.size() > options_.most_bytes)
    fail_usage("expected weights of at most {} bytes in all (--max-update-gib), found more",
               options_.most_bytes);
  if (files_.size() + names.size() > kMostTensors)
    fail_usage("expected at most {} tensors, found more", kMostTensors);
  for (const std::string& name : names)
    if (files_.contains(name))
      fail_usage("expected each tensor once, found {} again", json::quoted(name));
  const std::string file = fmt::format("piece-{:06}.safetensors", ++pieces_);
  write_file_atomically((directory_ / file).string(), safetensors);
  for (const std::string& name : names) files_[name] = file;
  bytes_ += safetensors.size();
  return {files_.size(), bytes_};
}

std::string WeightSpool::finish() {
  const std::lock_guard lock(mutex_);
  if (files_.empty()) fail_usage("expected weights before the end of an update, found none");
  json::Value map = json::Object{};
  for (const auto& [name, file] : files_) map.set(name, file);
  const json::Value index =
      json::Object{{"metadata", json::Object{{"total_size", static_cast<int64_t>(bytes_)}}},
                   {"weight_map", std::move(map)}};
  write_file_atomically((directory_ / "model.safetensors.index.json").string(),
                        json::dump(index, 2));
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.model)) {
    const fs::path to = directory_ / entry.path().filename();
    if (entry.is_regular_file() && !is_weights(entry.path()) && !fs::exists(to))
      fs::create_symlink(fs::absolute(entry.path()), to);
  }
  return directory_.string();
}

}  // namespace invar::server
