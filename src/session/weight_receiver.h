// Weights that a trainer sends by NCCL, on their way to an engine: they are kept beside those in
// use until all of an update have come.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "collectives/trainer_group.h"
#include "session/weight_change.h"

namespace invar {

// An update as the trainer announces it, in the order in which it sends.
struct Announcement {
  struct One {
    std::string name, dtype;  // as torch calls it: "bfloat16"
    std::vector<int64_t> shape;
  };
  std::vector<One> tensors;
  // Tensors lie one after the other in pieces of bytes; a piece ends behind the first tensor with
  // which it is larger than this.
  bool is_packed = false;
  int64_t piece_bytes = int64_t{1} << 30;
};

class WeightReceiver {
 public:
  struct Counts {
    size_t tensors = 0;
    int64_t bytes = 0;  // as they came
  };

  // Takes memory for an update: as much as the model's tensors have, where one GPU or the host has
  // all weights. `patience`: with a trainer that does not come, or does not go on. The model
  // outlives it. Throws UsageError for a model whose weights are not those of its files.
  WeightReceiver(Model& model, std::chrono::milliseconds patience);

  // All of these are for one thread, and throw Error, one sentence. Joins a trainer's group, in
  // place of the one before.
  void join(const TrainerGroup::Meeting& meeting);
  void leave() { group_.reset(); }
  // Begins an update: nothing has come.
  void begin();
  // Takes what the trainer announced. All of it has come before an error that says that the model
  // has no such tensor, so that the trainer is not kept waiting. With any other error the group is
  // over: what the trainer sends would be taken for what comes next. Returns what has come of the
  // update.
  Counts receive(const Announcement& announcement);
  // The tensors of the update, for as long as nothing else is called.
  std::vector<GivenTensor> came() const;

  // From any thread: whatever waits ends with an Error, now and later.
  void stop() { stopping_.request_stop(); }

 private:
  struct Came {
    TensorInfo info;  // of the model's tensor
    const std::byte* data = nullptr;
    std::vector<std::byte> copy;  // where it is the host's: what `data` points to
  };
  struct Coming {
    const Announcement::One* one;
    DType type;
    int64_t elements, bytes;
    std::string wrong;  // empty: the model has such a tensor
  };
  using Run = std::span<const Coming>;

  Coming coming(const Announcement::One& one);
  void receive_run(Run run, bool is_packed);
  std::byte* place(Run run, int64_t bytes);
  void keep(const Coming& one, const std::byte* data);
  bool stays_in_place(const Coming& one) const;
  std::byte* scratch(int64_t bytes);

  Model& model_;
  const std::chrono::milliseconds patience_;
  std::map<std::string, TensorInfo, std::less<>> infos_;
  DeviceArray<std::byte> memory_, scratch_;
  int64_t used_ = 0;  // of memory_
  std::map<std::string, Came, std::less<>> came_;
  Counts counts_;
  std::stop_source stopping_;
  std::optional<TrainerGroup> group_;
};

}  // namespace invar
