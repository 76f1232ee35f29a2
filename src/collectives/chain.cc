#include <vector>

#include "collectives/group.h"

namespace invar {

namespace {

class ChainGroup final : public Group {
 public:
  explicit ChainGroup(Group& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void barrier() override { inner_.barrier(); }
  void leave() override { inner_.leave(); }
  void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) override {
    inner_.all_gather(mine, bytes, all, on);
  }

  void tree_all_reduce(float* data, int64_t count, const Execution& on) override {
    const ScopedFlushToZero flush;
    all_.resize(static_cast<size_t>(count * size()));
    inner_.all_gather(data, count * static_cast<int64_t>(sizeof(float)), all_.data(), on);
    for (int64_t i = 0; i < count; ++i) {
      float sum = all_[i];
      for (int r = 1; r < size(); ++r) sum = sum + all_[r * count + i];
      data[i] = sum;
    }
  }

 private:
  Group& inner_;
  std::vector<float> all_;
};

}  // namespace

std::unique_ptr<Group> make_chain_group(Group& inner) {
  return std::make_unique<ChainGroup>(inner);
}

}  // namespace invar
