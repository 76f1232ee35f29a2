// Tensors of drafters as they are published: one file, in which they have names of their own.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "weights/safetensors.h"
#include "weights/source_bases.h"

namespace invar {

// The seed of the directory "dummy:SEED", whose tensors are made; none for another directory.
// Throws UsageError when no number follows.
std::optional<uint64_t> made_seed(const std::string& directory);

class TensorFile {
 public:
  // The first of `names` that stands in the directory. Throws UsageError when there is none; one
  // that says how to convert where there is a pickle instead.
  TensorFile(const std::string& directory, std::span<const char* const> names);

  const std::string& path() const { return file_->path(); }
  bool has(const std::string& name) const { return find(name) != nullptr; }
  // Throws Error, naming the tensor, when it is missing or not of numbers.
  TensorInfo info(const std::string& name) const;
  // Elements as TensorSource::read gives them, of a tensor that is there; from any thread.
  void read(const std::string& name, int64_t first, int64_t count, DType as, void* out) const;
  // The numbers of a tensor of I64 or I32. Throws Error when there are not `size`.
  std::vector<int64_t> integers(const std::string& name, int64_t size) const;
  // The first tensor that was not read so far and whose name ends in none of `unneeded`, or "".
  std::string first_unread(std::span<const char* const> unneeded) const;

 private:
  const SafetensorsTensor* find(const std::string& name) const;
  const SafetensorsTensor& require(const std::string& name) const;
  DType type_of(const SafetensorsTensor& tensor) const;

  std::unique_ptr<SafetensorsFile> file_;
  mutable std::set<std::string, std::less<>> read_;
};

struct RenamedTensor {
  TensorInfo info;
  std::string name_there;
  const TensorFile* file = nullptr;  // or:
  const TensorSource* source = nullptr;
};

// Tensors by the names that a decoder knows them by, from a drafter's file and from its target.
class RenamedTensors final : public ListedTensors<RenamedTensor> {
 public:
  // Adds a tensor of `file`, or of `source`, which live as long.
  void add(const std::string& name, const TensorFile& file, const std::string& name_there);
  void add(const std::string& name, const TensorSource& source, const std::string& name_there);

  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;
  std::string where(std::string_view name) const override;

 private:
  void add(const std::string& name, RenamedTensor entry);
};

}  // namespace invar
