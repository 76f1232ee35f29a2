#include "session/adapter.h"

#include <filesystem>

#include "model/adapter_weights.h"

namespace invar {

namespace {

// Times and sizes of its files.
std::string state_of(const std::filesystem::path& adapter) {
  std::string state;
  for (const char* name : {"", "adapter_config.json", "adapter_model.safetensors"}) {
    const std::filesystem::path file = *name ? adapter / name : adapter;
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(file, ignored);
    state += fmt::format("{} {} ", time.time_since_epoch().count(),
                         std::filesystem::file_size(file, ignored));
  }
  return state;
}

}  // namespace

std::shared_ptr<const RequestAdapter> OpenedAdapters::open(const std::string& directory,
                                                           const DecoderSpec& spec,
                                                           AdapterUser user) {
  std::string state = state_of(directory);
  if (const auto found = opened_.find(directory);
      found != opened_.end() && found->second.state == state)
    return found->second.adapter;
  if (opened_.size() >= kMost) opened_.clear();
  auto adapter = open_adapter(directory, directory, spec, user);
  opened_[directory] = {std::move(state), adapter};
  return adapter;
}

std::shared_ptr<const RequestAdapter> open_adapter(const std::string& name,
                                                   const std::string& directory,
                                                   const DecoderSpec& spec, AdapterUser user) {
  // Workers in other processes may have other working directories.
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(directory, ignored);
  const LoraAdapter adapter(absolute.string());
  expect_fits(adapter, spec, user);
  ThreadPool one(1);
  return std::make_shared<const RequestAdapter>(
      RequestAdapter{.name = name,
                     .directory = adapter.path(),
                     .rank = static_cast<int32_t>(adapter.most_rank()),
                     .digest = adapter.digest(one)});
}

}  // namespace invar
