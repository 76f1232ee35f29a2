#include "served_adapters.h"

#include "base/error.h"
#include "base/json.h"

namespace invar::server {

void ServedAdapters::load(const std::string& name, const std::string& directory, bool replaces) {
  if (name.empty() || name.size() > kMaxNameBytes || name.find('*') != name.npos)
    fail_usage("expected a name of 1 to {} bytes without * for an adapter, found {}", kMaxNameBytes,
               json::quoted(name));
  if (directory.empty() || directory.size() > kMaxPathBytes)
    fail_usage("expected a directory of 1 to {} bytes for the adapter {}, found {} bytes",
               kMaxPathBytes, json::quoted(name), directory.size());
  const auto expect_free = [&] {
    const std::lock_guard lock(mutex_);
    if (!replaces && adapters_.contains(name))
      fail_usage("the adapter {} is loaded already; unload it first, or say \"load_inplace\": true",
                 json::quoted(name));
    if (adapters_.size() >= kMost && !adapters_.contains(name))
      fail_usage("expected at most {} adapters", kMost);
  };
  expect_free();
  auto adapter = open_(name, directory);
  const std::lock_guard change(changing_);
  expect_free();
  if (journal_) journal_->keep_adapter({name, adapter->directory, adapter->digest});
  const std::lock_guard lock(mutex_);
  adapters_[name] = std::move(adapter);
}

void ServedAdapters::keep_in(Journal& journal, const std::function<void(const std::string&)>& say) {
  for (const KeptAdapter& kept : journal.adapters()) {
    try {
      auto adapter = open_(kept.name, kept.directory);
      if (adapter->digest != kept.digest)
        fail("{}: expected an adapter with the digest {}, found {}", kept.directory,
             to_hex(kept.digest), to_hex(adapter->digest));
      const std::lock_guard lock(mutex_);
      adapters_[kept.name] = std::move(adapter);
    } catch (const Error& error) {
      say(fmt::format("the adapter {} is not served as before the restart: {}",
                      json::quoted(kept.name), error.what()));
    }
  }
  journal_ = &journal;
}

bool ServedAdapters::unload(const std::string& name) {
  const std::lock_guard change(changing_);
  if (!find(name)) return false;
  if (journal_) journal_->forget_adapter(name);
  const std::lock_guard lock(mutex_);
  return adapters_.erase(name) > 0;
}

std::shared_ptr<const RequestAdapter> ServedAdapters::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(name);
  return found == adapters_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const RequestAdapter>> ServedAdapters::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const RequestAdapter>> all;
  for (const auto& [name, adapter] : adapters_) all.push_back(adapter);
  return all;
}

}  // namespace invar::server
