#include <vector>

#include "collectives/group.h"
#include "collectives/peer_group.h"

namespace invar {

namespace {

constexpr int64_t kPiece = 4 << 20;  // floats of an operand that a device gathers at a time

class ChainGroup final : public Group {
 public:
  explicit ChainGroup(Group& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void barrier() override { inner_.barrier(); }
  void leave() override { inner_.leave(); }
  void begin_step(const Execution& on) override { inner_.begin_step(on); }
  void end_step(const Execution& on) override { inner_.end_step(on); }
  bool can_be_recorded() const override { return inner_.can_be_recorded(); }
  void expect_whole() override { inner_.expect_whole(); }
  void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) override {
    inner_.all_gather(mine, bytes, all, on);
  }

  void tree_all_reduce(float* data, int64_t count, const Execution& on) override {
    if (on.device && !on.device->is_host()) return add_on_device(data, count, on);
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
  // In pieces, so that the memory is never another: graphs keep its address.
  void add_on_device(float* data, int64_t count, const Execution& on) {
    if (gathered_.size() == 0)
      gathered_ = {*on.device, static_cast<size_t>(kPiece * size()), "what ranks exchange"};
    for (int64_t at = 0; at < count; at += kPiece) {
      const int64_t piece = std::min(kPiece, count - at);
      inner_.all_gather(data + at, piece * static_cast<int64_t>(sizeof(float)), gathered_.data(),
                        on);
      add_chain_on_device(size(), gathered_.data(), data + at, piece, on);
    }
  }

  Group& inner_;
  std::vector<float> all_;
  DeviceArray<float> gathered_;
};

}  // namespace

std::unique_ptr<Group> make_chain_group(Group& inner) {
  return std::make_unique<ChainGroup>(inner);
}

}  // namespace invar
