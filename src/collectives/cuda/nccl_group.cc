#include "collectives/cuda/nccl_group.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "collectives/cuda/peer_kernels.h"
#include "collectives/cuda/step_order.h"
#include "collectives/nccl_library.h"
#include "device/cuda/cuda_stream.h"

namespace invar {

namespace {

constexpr int64_t kPiece = 4 << 20;  // floats of an operand that are gathered at a time

class NcclGroup final : public Group {
 public:
  NcclGroup(Group& host_group, std::optional<PeerProcesses> processes, bool is_tree)
      : host_(host_group),
        processes_(std::move(processes)),
        is_tree_(is_tree),
        staged_(make_staged_group(host_group)) {}
  ~NcclGroup() override {
    watcher_ = {};
    if (!comm_) return;
    gpu_->try_to_make_current();
    if (has_somebody_left()) {
      nccl_->abort(comm_);
    } else {
      cudaDeviceSynchronize();
      nccl_->destroy(comm_);
    }
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  void barrier() override { host_.barrier(); }
  bool can_be_recorded() const override { return true; }

  // Those of this process are told by their words, others by the host's group.
  void leave() override {
    has_left_ = true;
    if (!processes_)
      for (std::atomic<bool>* other : others_) other->store(true);
    host_.leave();
  }

  void begin_step(const Execution& on) override {
    expect_whole();
    order_.begin(on);
  }
  void end_step(const Execution& on) override { order_.end(on); }
  void expect_whole() override {
    if (!has_given_up_) return;
    const std::string wrong = trouble();
    throw PeerLeft(wrong.empty() ? "a rank has left in the middle of what NCCL gathers" : wrong);
  }

  void tree_all_reduce(float* data, int64_t count, const Execution& on) override {
    open(on);
    if (count % 4 != 0) return staged_->tree_all_reduce(data, count, on);
    if (!is_tree_)
      return with_comm(
          [&] { nccl_->all_reduce(data, static_cast<size_t>(count), comm_, stream_of(on)); });
    for (int64_t at = 0; at < count; at += kPiece) {
      const int64_t piece = std::min(kPiece, count - at);
      with_comm([&] {
        nccl_->all_gather(data + at, gathered_.data(), static_cast<size_t>(piece),
                          Nccl::Type::floats, comm_, stream_of(on));
      });
      cuda::add_gathered(size(), gathered_.data(), data + at, piece, on);
    }
  }

  void all_gather(const void* mine, int64_t bytes, void* all, const Execution& on) override {
    if (!on.stream) return host_.all_gather(mine, bytes, all, on);  // the host's own
    open(on);
    with_comm([&] {
      nccl_->all_gather(mine, all, static_cast<size_t>(bytes), Nccl::Type::bytes, comm_,
                        stream_of(on));
    });
  }

 private:
  // With the first operation, which is nobody's recorded one.
  void open(const Execution& on) {
    if (nccl_) return;
    const Nccl& nccl = Nccl::open();
    std::atomic<bool>* own = &has_left_;
    others_.resize(static_cast<size_t>(size()));
    host_.all_gather(&own, sizeof own, others_.data(), {});
    Nccl::Id id{};
    if (rank() == 0) id = nccl.make_id();
    std::vector<Nccl::Id> ids(others_.size());
    host_.all_gather(&id, sizeof id, ids.data(), {});
    if (is_tree_)
      gathered_ = {*on.device, static_cast<size_t>(kPiece * size()), "what ranks exchange"};
    stream_of(on);  // its GPU is the current one
    comm_ = nccl.join(size(), ids[0], rank());
    gpu_ = &gpu_of(on);
    nccl_ = &nccl;
    watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }

  // The watcher does not end what is being called, unless that waits for somebody itself.
  template <typename Call>
  void with_comm(Call call) {
    const std::lock_guard lock(calling_);
    expect_whole();
    try {
      call();
    } catch (const Error&) {
      expect_whole();
      throw;
    }
  }

  std::string trouble() const {
    return processes_ && processes_->trouble ? processes_->trouble() : std::string();
  }
  bool has_somebody_left() const {
    if (has_left_) return true;
    if (!processes_) return false;
    if (processes_->leaver && std::atomic_ref<uint32_t>(*processes_->leaver).load() != 0)
      return true;
    return !trouble().empty();
  }

  // NCCL's kernels wait for ever for a rank that has left, unless they are told.
  void watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (has_somebody_left()) {
        has_given_up_ = true;
        const std::unique_lock lock(calling_, std::chrono::seconds(1));
        return nccl_->abort(comm_.exchange(nullptr));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  Group& host_;
  const std::optional<PeerProcesses> processes_;
  const bool is_tree_;
  const std::unique_ptr<Group> staged_;
  const Nccl* nccl_ = nullptr;  // null: not yet opened
  std::atomic<Nccl::Comm> comm_ = nullptr;
  Gpu* gpu_ = nullptr;
  std::timed_mutex calling_;
  DeviceArray<float> gathered_;
  std::vector<std::atomic<bool>*> others_;  // has_left_ of each rank, where all are threads
  std::atomic<bool> has_left_ = false, has_given_up_ = false;
  StepOrder order_;
  std::jthread watcher_;
};

}  // namespace

std::unique_ptr<Group> make_nccl_group(Group& host_group, std::optional<PeerProcesses> processes,
                                       bool is_tree) {
  return std::make_unique<NcclGroup>(host_group, std::move(processes), is_tree);
}

}  // namespace invar
