#include "collectives/trainer_group.h"

#include <condition_variable>
#include <optional>
#include <thread>

#include "base/error.h"
#include "collectives/nccl_stream.h"
#include "collectives/pickled_id.h"

namespace invar {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(10);
// Keys of the store: of torch's, by which the one who has it counts who came; of vLLM's first
// object, under the prefix that torch puts before every name.
constexpr const char* kCame = "init/";
constexpr const char* kId = "/broadcast_from/0/0";
constexpr size_t kMostPickle = 4096;

double seconds(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

}  // namespace

// Looks beside the waiting thread whether to wait on. NCCL's kernels wait for ever.
class TrainerGroup::Watch {
 public:
  Watch(TrainerGroup& group, const std::stop_token& stop)
      : group_(group), stop_(stop), thread_([this](const std::stop_token& over) { look(over); }) {}

 private:
  void look(const std::stop_token& over) {
    const auto began = Clock::now();
    std::optional<Clock::time_point> left;
    std::unique_lock lock(mutex_);
    while (!over.stop_requested()) {
      const auto now = Clock::now();
      if (!left && group_.store_.has_ended()) left = now;
      if (stop_.stop_requested()) return group_.give_up("the wait for the trainer was ended");
      if (now > began + group_.patience_)
        return group_.give_up(
            fmt::format("expected a trainer's next tensor within {} s, found nothing",
                        seconds(group_.patience_)));
      if (left && now > *left + kGrace)
        return group_.give_up("the trainer has left: its store is gone and nothing more came");
      over_.wait_for(lock, over, kLook, [] { return false; });
    }
  }

  TrainerGroup& group_;
  const std::stop_token stop_;
  std::mutex mutex_;
  std::condition_variable_any over_;
  std::jthread thread_;
};

TrainerGroup::TrainerGroup(const Meeting& meeting, Device& device,
                           std::chrono::milliseconds patience, const std::stop_token& stop)
    : device_(device),
      patience_(patience),
      nccl_(Nccl::open()),
      store_(meeting.host, meeting.port, Deadline::in(patience, stop)),
      stream_(device.make_stream()) {
  const Deadline deadline = Deadline::in(patience, stop);
  try {
    join(meeting, deadline);
    // vLLM's communicators begin with a sum, in which every rank takes part.
    const DeviceArray<float> one(device, 1, "a sum with a trainer");
    const Watch watch(*this, stop);
    run([&](Nccl::Stream stream) { nccl_.all_reduce(one.data(), 1, comm_, stream); });
  } catch (...) {
    give_up("the group did not come together");
    throw;
  }
}

TrainerGroup::~TrainerGroup() {
  give_up("it has been left");
}

void TrainerGroup::join(const Meeting& meeting, const Deadline& deadline) {
  store_.add(kCame, 1, deadline);
  const Nccl::Id id = unpickled_id(store_.get(kId, kMostPickle, deadline));
  nccl_stream(device_, *stream_);
  comm_ = nccl_.begin_joining(meeting.ranks, id, meeting.rank);
  for (; !has_done(); std::this_thread::sleep_for(kLook)) {
    deadline.expect_time(fmt::format("{} ranks to join the trainer's group", meeting.ranks));
    if (store_.has_ended()) fail("the trainer has left before every rank joined its group");
  }
}

void TrainerGroup::receive(const Piece& piece, const std::stop_token& stop) {
  expect_whole();
  try {
    const Watch watch(*this, stop);
    run([&](Nccl::Stream stream) {
      nccl_.broadcast(piece.data, piece.count, piece.type, 0, comm_, stream);
    });
  } catch (...) {
    give_up("what the trainer sent did not come");
    throw;
  }
}

// Waits for what `begin` puts into the stream.
void TrainerGroup::run(FunctionRef<void(Nccl::Stream)> begin) {
  const Nccl::Stream stream = nccl_stream(device_, *stream_);
  {
    const std::lock_guard lock(mutex_);
    if (over_.empty()) begin(stream);
  }
  while (!has_done()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  stream_->wait();
  expect_whole();
}

bool TrainerGroup::has_done() {
  const std::lock_guard lock(mutex_);
  if (!over_.empty()) fail("{}", over_);
  return nccl_.has_done(comm_);
}

void TrainerGroup::expect_whole() const {
  const std::lock_guard lock(mutex_);
  if (!over_.empty()) fail("{}", over_);
}

// Ends what NCCL waits for.
void TrainerGroup::give_up(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!over_.empty()) return;
  over_ = why;
  if (comm_) nccl_.abort(comm_);
  comm_ = nullptr;
}

}  // namespace invar
