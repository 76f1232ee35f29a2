// The adapters that clients may ask for by name, as they ask for the model.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/request.h"
#include "journal/journal.h"

namespace invar::server {

class ServedAdapters {
 public:
  static constexpr size_t kMost = 1 << 14;
  static constexpr size_t kMaxNameBytes = 256, kMaxPathBytes = 4096;
  // Reads an adapter's directory. Throws Error.
  using Open = std::function<std::shared_ptr<const RequestAdapter>(const std::string& name,
                                                                   const std::string& directory)>;

  explicit ServedAdapters(Open open) : open_(std::move(open)) {}

  // Serves what the journal keeps, in place of others of their names, and from now on has it keep
  // what is loaded, so that it is there after a restart. `say` hears a sentence of each that is
  // gone or no longer what was loaded, which is not served. The journal outlives the adapters.
  void keep_in(Journal& journal, const std::function<void(const std::string&)>& say);
  // Reads the directory and serves it under the name, in place of another one where `replaces`.
  // Throws Error.
  void load(const std::string& name, const std::string& directory, bool replaces);
  // Requests that have it go on. False where there is none of the name. Throws Error.
  bool unload(const std::string& name);
  // Null: there is none.
  std::shared_ptr<const RequestAdapter> find(const std::string& name) const;
  std::vector<std::shared_ptr<const RequestAdapter>> all() const;

 private:
  Open open_;
  Journal* journal_ = nullptr;  // null: none is kept
  std::mutex changing_;         // taken before mutex_; the journal and the map change together
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const RequestAdapter>> adapters_;
};

}  // namespace invar::server
