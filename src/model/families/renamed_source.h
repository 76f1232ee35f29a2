// Tensors of another source under other names, or as other types, or with their rows elsewhere, as
// conversions between directories and GGUF files need them.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "weights/source_bases.h"

namespace invar {

// Rows of a tensor of the other source that stand together in both. Or columns of it, and of
// another one in turn with them.
struct RenamedRun {
  int name, other;  // in RenamedEntry::names; -1: there is none
  int64_t first, rows;
  bool is_turned;
};
struct RenamedEntry {
  TensorInfo info;
  int64_t width = 1;             // elements of a row
  std::vector<RenamedRun> runs;  // one behind the other
  std::vector<std::string> names;
  bool is_minus_one = false;    // 1 is taken away from its elements, exactly
  bool is_exponential = false;  // it is -exp of them
  float factor = 1;             // they are its elements times this
  float multiplier = 1;         // its elements are bf16 numbers of theirs times this, in f32
  std::vector<float> numbers;   // its elements, where it is made of no other tensor
};

class RenamedSource final : public ListedTensors<RenamedEntry> {
 public:
  using Run = RenamedRun;
  using Entry = RenamedEntry;
  using Entries = std::map<std::string, Entry, std::less<>>;

  RenamedSource(const TensorSource& base, Entries entries) : base_(base) {
    entries_ = std::move(entries);
    list_names();
  }

  std::string where(std::string_view name) const override;
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override;

 private:
  using Bytes = std::shared_ptr<const std::vector<char>>;
  Bytes turned(const Entry& entry, const Run& run, DType as) const;
  void read_run(const Entry& entry, const Run& run, int64_t first, int64_t count, DType as,
                char* to) const;

  const TensorSource& base_;
  mutable std::mutex turning_;
  mutable std::list<std::pair<std::pair<std::string, DType>, Bytes>> kept_;
};

}  // namespace invar
