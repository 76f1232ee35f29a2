#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstring>

#include "base/check.h"
#include "collectives/group.h"

namespace invar {

namespace {

// What the ranks of one group share: where each rank's operand lies during an operation.
struct Meeting {
  explicit Meeting(int size) : operands(size), barrier(size) {}
  std::vector<std::atomic<const void*>> operands;  // null once their rank has left
  std::barrier<> barrier;
};

class InprocGroup final : public Group {
 public:
  InprocGroup(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_->operands.size()); }
  void barrier() override { meeting_->barrier.arrive_and_wait(); }
  void leave() override {
    meeting_->operands[rank_] = nullptr;
    meeting_->barrier.arrive_and_drop();
  }

  void tree_all_reduce(float* data, int64_t count, const Execution&) override {
    meet(data);
    scratch_.resize(static_cast<size_t>(count));
    float s[64];
    for (int64_t i = 0; i < count; ++i) {
      for (int r = 0; r < size(); ++r) s[r] = static_cast<const float*>(all_[r])[i];
      for (int n = size(); n > 1; n /= 2)
        for (int r = 0; r < n / 2; ++r) s[r] = s[2 * r] + s[2 * r + 1];
      scratch_[i] = s[0];
    }
    barrier();  // nobody still reads what is overwritten now
    std::memcpy(data, scratch_.data(), static_cast<size_t>(count) * sizeof(float));
  }

  void all_gather(const void* mine, int64_t bytes, void* all, const Execution&) override {
    meet(mine);
    for (int r = 0; r < size(); ++r)
      std::memcpy(static_cast<char*>(all) + r * bytes, all_[r], static_cast<size_t>(bytes));
    barrier();
  }

 private:
  // Shows the others this rank's operand and sees theirs.
  void meet(const void* mine) {
    meeting_->operands[rank_] = mine;
    barrier();
    std::copy(meeting_->operands.begin(), meeting_->operands.end(), all_.begin());
    for (int r = 0; r < size(); ++r)
      if (!all_[r]) throw PeerLeft(fmt::format("rank {} has left its group", r));
  }

  std::shared_ptr<Meeting> meeting_;
  int rank_;
  std::array<const void*, 64> all_;  // the ranks' operands in this operation
  std::vector<float> scratch_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> make_inproc_groups(int size) {
  CHECK(size >= 1 && size <= 64 && (size & (size - 1)) == 0,
        "ranks come in powers of two up to 64");
  auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<Group>> groups;
  for (int r = 0; r < size; ++r) groups.push_back(std::make_unique<InprocGroup>(meeting, r));
  return groups;
}

}  // namespace invar
