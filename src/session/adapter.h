// An adapter that requests may name (numerics 2.4), looked at: whether it is one of this model's,
// and its digest.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/request.h"
#include "model/adapter_user.h"
#include "model/decoder_spec.h"

namespace invar {

// Reads all of the directory, as PEFT saves it. Throws Error, one sentence, where it is none that
// this model can be computed with.
std::shared_ptr<const RequestAdapter> open_adapter(const std::string& name,
                                                   const std::string& directory,
                                                   const DecoderSpec& spec, AdapterUser user);

// Those that were looked at, by directory: each is read again when its files have changed.
class OpenedAdapters {
 public:
  // Throws as open_adapter does.
  std::shared_ptr<const RequestAdapter> open(const std::string& directory, const DecoderSpec& spec,
                                             AdapterUser user);

 private:
  static constexpr size_t kMost = 1 << 14;
  struct Opened {
    std::string state;  // of its files
    std::shared_ptr<const RequestAdapter> adapter;
  };
  std::map<std::string, Opened> opened_;
};

}  // namespace invar
