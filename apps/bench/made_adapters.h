// Adapters of made numbers beside every matrix of a model's layers that can have one: for benches
// and audits.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "engine/request.h"
#include "model/adapter_user.h"
#include "model/decoder_spec.h"

namespace invar::cli {

class MadeAdapters {
 public:
  // Writes adapters into directories, which are gone when this is. `size` is that of their numbers.
  MadeAdapters(const DecoderSpec& spec, AdapterUser user, int rank, int count, float size = 0.01F);
  ~MadeAdapters();
  MadeAdapters(const MadeAdapters&) = delete;
  MadeAdapters& operator=(const MadeAdapters&) = delete;

  const std::shared_ptr<const RequestAdapter>& operator[](int i) const {
    return adapters_[static_cast<size_t>(i)];
  }
  // Whether a model can have any.
  static bool exist_for(const DecoderSpec& spec, AdapterUser user);

 private:
  std::filesystem::path directory_;
  std::vector<std::shared_ptr<const RequestAdapter>> adapters_;
};

}  // namespace invar::cli
