// Ranks on GPUs that read and write each other's memory.
#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"
#include "collectives/cuda/nccl_group.h"
#include "collectives/cuda/peer_memory.h"
#include "collectives/cuda/step_order.h"

namespace invar {

namespace {

using cuda::PeerMemory;

class PeerGroup final : public Group {
 public:
  PeerGroup(Group& host_group, const PeerOptions& options, std::optional<PeerProcesses> processes)
      : host_(host_group),
        options_(settled(options, host_group.size())),
        processes_(std::move(processes)),
        staged_(make_staged_group(host_group)),
        way_(knows_its_way(options) ? options.way : Way::automatic) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  void barrier() override { host_.barrier(); }
  void leave() override {
    if (memory_) memory_->leave();
    host_.leave();
  }

  void begin_step(const Execution& on) override {
    expect_whole();
    order_.begin(on);
  }
  void end_step(const Execution& on) override { order_.end(on); }
  bool can_be_recorded() const override { return way_ == Way::device || way_ == Way::none; }

  void expect_whole() override {
    if (!memory_ || !memory_->has_given_up()) return;
    const std::string wrong =
        processes_ && processes_->trouble ? processes_->trouble() : std::string();
    if (!wrong.empty()) throw PeerLeft(wrong);
    throw PeerLeft(fmt::format("rank {} has waited on its GPU for one that did not come", rank()));
  }

  void tree_all_reduce(float* data, int64_t count, const Execution& on) override {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
    if (way_ == Way::none) return;
    if (!meets_on_gpus(data, bytes, on)) return staged_->tree_all_reduce(data, count, on);
    if (way_ == Way::device && bytes * (size() - 1) <= options_.one_shot_bytes)
      return cuda::push_and_add(memory_->view(), data, count, on);
    if (processes_)
      return by_desk(bytes, [&](int64_t at, int64_t piece) {
        auto* floats = reinterpret_cast<std::byte*>(data) + at;
        reduce_on_desk(floats, piece, on);
      });
    if (way_ == Way::device) return cuda::add_shares(memory_->view(), data, count, on);
    show(data, on);
    add_operands(count, on, [&](int r) { return const_cast<void*>(shown_[r].operand); });
    finish(on);
  }

  void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) override {
    if (!on.stream) return host_.all_gather(mine, bytes, all, on);  // the host's own
    if (way_ == Way::none)
      return copy(static_cast<std::byte*>(all) + rank() * bytes, mine, bytes, on);
    if (!meets_on_gpus(mine, bytes, on)) return staged_->all_gather(mine, bytes, all, on);
    auto* to = static_cast<std::byte*>(all);
    if (processes_)
      return by_desk(bytes, [&](int64_t at, int64_t piece) {
        gather_on_desk(static_cast<const std::byte*>(mine) + at, piece, to + at, bytes, on);
      });
    if (way_ == Way::device)
      return cuda::gather_pieces(memory_->view(), mine, bytes, all, bytes, on);
    show(mine, on);
    for (int r = 0; r < size(); ++r) copy(to + r * bytes, shown_[r].operand, bytes, on);
    finish(on);
  }

 private:
  using Way = PeerOptions::Way;  // automatic: not known yet

  static PeerOptions settled(PeerOptions options, int ranks) {
    if (options.one_shot_bytes < 0) options.one_shot_bytes = ranks == 2 ? 8 << 20 : 5 << 19;
    return options;
  }

  // Before it has met the others.
  static bool knows_its_way(const PeerOptions& options) {
    return options.way == Way::staged || options.way == Way::none;
  }

  // The kernels move 16 bytes at a time; sizes are the same for all ranks.
  bool meets_on_gpus(const void* operand, int64_t bytes, const Execution& on) {
    if (way_ == Way::automatic) way_ = open(on);
    if (way_ == Way::staged || bytes % 16 != 0) return false;
    CHECK(reinterpret_cast<uintptr_t>(operand) % 16 == 0, "operands of ranks begin at 16 bytes");
    return true;
  }

  Way open(const Execution& on) {
    memory_.emplace(host_, on, options_, processes_ ? &*processes_ : nullptr);
    for (auto* event : {&ready_, &done_}) *event = on.device->make_event();
    if (!memory_->is_mapped()) return Way::staged;
    if (options_.way != Way::automatic) return options_.way;
    return memory_->has_gpus_apart() ? Way::device : Way::host;
  }

  static void copy(void* to, const void* from, int64_t bytes, const Execution& on) {
    const size_t width = static_cast<size_t>(bytes);
    on.stream->copy_rows(to, width, from, width, width, 1);
  }

  // This rank's share of the sums of operands that are all there, written into all of them.
  template <typename OperandOf>
  void add_operands(int64_t count, const Execution& on, OperandOf operand_of) {
    cuda::PeerOperands operands{.rank = rank(), .size = size(), .data = {}};
    for (int r = 0; r < size(); ++r)
      operands.data[r] = static_cast<float*>(static_cast<void*>(operand_of(r)));
    cuda::add_share(operands, count, on);
  }

  // ---- Threads whose kernels may not wait for each other

  struct Shown {
    const void* operand;
    const Event *ready, *done;
  };

  // Shows the others this rank's operand, and sees theirs; what follows in the stream comes after
  // all of them are there.
  void show(const void* operand, const Execution& on) {
    on.stream->record(*ready_);
    const Shown mine{operand, ready_.get(), done_.get()};
    host_.all_gather(&mine, sizeof mine, shown_.data(), {});
    for (int r = 0; r < size(); ++r)
      if (r != rank()) on.stream->wait_for(*shown_[r].ready);
  }
  // Later work comes after all ranks have finished with the operands.
  void finish(const Execution& on) {
    on.stream->record(*done_);
    host_.barrier();
    for (int r = 0; r < size(); ++r)
      if (r != rank()) on.stream->wait_for(*shown_[r].done);
  }

  // ---- Processes, which see each other's desks

  template <typename Work>
  void by_desk(int64_t bytes, Work work) const {
    const auto desk = static_cast<int64_t>(memory_->view().desk_bytes);
    for (int64_t at = 0; at < bytes; at += desk) work(at, std::min(desk, bytes - at));
  }

  // A rank's own share stays where it is: nobody else reads or writes it.
  void reduce_on_desk(std::byte* data, int64_t bytes, const Execution& on) {
    const cuda::PeerView& view = memory_->view();
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    std::byte* desk = view.desk(rank());
    const int64_t begin = count / 4 * rank() / size() * 16,
                  end = count / 4 * (rank() + 1) / size() * 16;
    const auto copy_others = [&](std::byte* to, const std::byte* from) {
      if (begin > 0) copy(to, from, begin, on);
      if (end < bytes) copy(to + end, from + end, bytes - end, on);
    };
    copy_others(desk, data);
    if (way_ == Way::device) {
      cuda::add_shares(view, reinterpret_cast<float*>(desk), count, on,
                       reinterpret_cast<float*>(data));
    } else {
      meet(on);
      add_operands(count, on, [&](int r) { return r == rank() ? data : view.desk(r); });
      meet(on);
    }
    copy_others(data, desk);
  }

  void gather_on_desk(const std::byte* mine, int64_t bytes, std::byte* all, int64_t stride,
                      const Execution& on) {
    const cuda::PeerView& view = memory_->view();
    copy(view.desk(rank()), mine, bytes, on);
    if (way_ == Way::device)
      return cuda::gather_pieces(view, view.desk(rank()), bytes, all, stride, on);
    meet(on);
    for (int r = 0; r < size(); ++r) copy(all + r * stride, view.desk(r), bytes, on);
    meet(on);
  }

  // Everybody's streams have come so far.
  void meet(const Execution& on) {
    on.stream->wait();
    host_.barrier();
  }

  Group& host_;
  const PeerOptions options_;
  const std::optional<PeerProcesses> processes_;
  const std::unique_ptr<Group> staged_;
  Way way_;
  std::optional<PeerMemory> memory_;
  std::unique_ptr<Event> ready_, done_;
  std::array<Shown, cuda::kMostPeers> shown_;
  StepOrder order_;
};

}  // namespace

namespace {

std::unique_ptr<Group> make_group(Group& host_group, std::optional<PeerProcesses> processes,
                                  const PeerOptions& options) {
  using Way = PeerOptions::Way;
  if (options.way == Way::nccl || options.way == Way::nccl_sum)
    return make_nccl_group(host_group, std::move(processes), options.way == Way::nccl);
  return std::make_unique<PeerGroup>(host_group, options, std::move(processes));
}

}  // namespace

std::unique_ptr<Group> make_peer_group(Group& host_group, const PeerOptions& options) {
  CHECK(options.one_shot_bytes < 0 || options.one_shot_bytes % 16 == 0, "slots are whole floats4");
  return make_group(host_group, std::nullopt, options);
}

std::unique_ptr<Group> make_peer_group(Group& host_group, PeerProcesses processes,
                                       const PeerOptions& options) {
  return make_group(host_group, std::move(processes), options);
}

void add_chain_on_device(int ranks, const float* gathered, float* sum, int64_t count,
                         const Execution& on) {
  cuda::add_chain(ranks, gathered, sum, count, on);
}

}  // namespace invar
