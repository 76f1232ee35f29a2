#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstring>

#include "base/check.h"
#include "collectives/group.h"
#include "collectives/team.h"

namespace invar {

namespace {

// The ranks of one group share this: where each rank's operand lies during an operation.
struct Meeting {
  explicit Meeting(int size) : operands(size), barrier(size) {}
  std::vector<std::atomic<const void*>> operands;  // null once their rank has left
  std::barrier<> barrier;
};

class InprocGroup final : public Group {
 public:
  InprocGroup(std::shared_ptr<Meeting> meeting, int rank)
      : meeting_(std::move(meeting)),
        rank_(rank),
        add_(team::add_of(static_cast<int>(meeting_->operands.size()))) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_->operands.size()); }
  void barrier() override { meeting_->barrier.arrive_and_wait(); }
  void leave() override {
    meeting_->operands[rank_] = nullptr;
    meeting_->barrier.arrive_and_drop();
  }

  void tree_all_reduce(float* data, int64_t count, const Execution& on) override {
    const ScopedFlushToZero flush;
    meet(data);
    const auto* operands = reinterpret_cast<const float* const*>(all_.data());
    if (count < team::kTwoShots) {
      scratch_.resize(static_cast<size_t>(count));
      add_(operands, {0, count}, scratch_.data());
      barrier();  // nobody still reads what is overwritten now
      std::memcpy(data, scratch_.data(), static_cast<size_t>(count) * sizeof(float));
      return;
    }
    // Nobody but this rank reads its share before it is added up, and nobody its other ones then.
    team::share_out(on, team::share_of(rank_, size(), count),
                    [&](Part::Run run) { add_(operands, run, data); });
    barrier();
    for (int r = 0; r < size(); ++r) {
      const Part::Run run = team::share_of(r, size(), count);
      if (r != rank_)
        team::copy(on, data + run.begin, operands[r] + run.begin,
                   (run.end - run.begin) * static_cast<int64_t>(sizeof(float)));
    }
    barrier();
  }

  void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) override {
    meet(mine);
    for (int r = 0; r < size(); ++r)
      team::copy(on, static_cast<char*>(all) + r * bytes, all_[r], bytes);
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
  team::Add add_;
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
