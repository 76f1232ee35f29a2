// Files of a hub's repositories over HTTP (libcurl), into the cache that Python's tools share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "session/hub_names.h"

namespace invar::cli {

// A file of a repository at a commit.
struct HubFile {
  std::string path;    // in the repository
  int64_t bytes = -1;  // -1: not said
  std::string sha256;  // of a large file; empty: `git` is what is known
  std::string git;     // the SHA-1 that git has of it; empty: not known

  // By which the cache has it.
  const std::string& etag() const { return sha256.empty() ? git : sha256; }
};

struct HubRepository {
  std::string name, commit;
  std::vector<HubFile> files;
};

class HubClient {
 public:
  // $HF_ENDPOINT and $HF_TOKEN, or what stands for them.
  HubClient();

  const std::string& endpoint() const { return endpoint_; }
  // Throws Error, naming what is wrong: there is none, or it needs a token.
  HubRepository list(const HubName& name) const;
  // The files, some at a time, each whole and with the hash that the hub says, and the links by
  // which the cache shows them; what is there is not fetched again, and what was cut off goes on.
  // `show` hears of bytes that are there. Throws Error.
  void fetch(const HubRepository& repository, const std::vector<HubFile>& files,
             const std::string& revision,
             const std::function<void(int64_t done, int64_t all)>& show) const;

 private:
  std::string endpoint_, token_;
};

}  // namespace invar::cli
