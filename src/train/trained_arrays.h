// The arrays that the ranks of a trainer keep between two steps, read as a whole: each has a part
// of it, in this process or in one of its own.
#pragma once

#include <memory>
#include <vector>

#include "train/owned_tensors.h"
#include "weights/tensor_source.h"

namespace invar {

// The arrays of one rank, of the tensors that it owns.
struct OwnedArrays {
  const float *master, *first, *second;
  const bf16_t* rounded;  // the master weights as the forward sees them
  Device* device;         // that has them
};

class TrainedArrays {
 public:
  // `here`: of all ranks, or, where each is a process, of this one's alone. The arrays must stay
  // where they are.
  TrainedArrays(const ParameterLayout& layout, const OwnedTensors& owned, Group* processes,
                std::vector<OwnedArrays> here);
  ~TrainedArrays();

  // Where ranks are processes these can be read by the first one alone, by one thread, while the
  // others serve.
  // The rounded weights as Trainer::weights has them.
  const TensorSource& weights() const;
  // "first", "master" and "second", the layout's elements each.
  const TensorSource& state() const;

  // Until the first process calls end_serving.
  void serve() const;
  void end_serving() const;

 private:
  enum Kind : int32_t { master, first, second, rounded, nothing };
  // Elements of one array that processes hand over at once.
  struct Block {
    Kind kind = nothing;
    int64_t number = 0;
    bool operator==(const Block&) const = default;
  };
  class Weights;
  class State;

  static int64_t element(Kind kind) { return kind == rounded ? sizeof(bf16_t) : sizeof(float); }
  const void* array(Kind kind, int rank) const;
  void read(Kind kind, int64_t begin, int64_t count, std::byte* out) const;
  void fetch(const Block& block) const;
  Block ask(const Block& block) const;
  void hand_over(const Block& block, std::byte* out) const;

  const ParameterLayout& layout_;
  const OwnedTensors& owned_;
  Group* processes_;
  std::vector<OwnedArrays> here_;
  mutable Block block_;  // that was fetched last
  mutable std::vector<std::byte> bytes_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<State> state_;
};

}  // namespace invar
