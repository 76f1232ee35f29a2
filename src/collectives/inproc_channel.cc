#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "collectives/channel.h"
#include "collectives/group.h"

namespace invar {

namespace {

class InprocChannel final : public Channel {
 public:
  void send(const void* data, size_t bytes) override {
    const auto* from = static_cast<const std::byte*>(data);
    {
      const std::lock_guard lock(mutex_);
      // A rank that sends ahead leaves something unread at any time.
      if (received_ > sent_.size() / 2) {
        sent_.erase(sent_.begin(), sent_.begin() + static_cast<std::ptrdiff_t>(received_));
        received_ = 0;
      }
      sent_.insert(sent_.end(), from, from + bytes);
    }
    arrived_.notify_one();
  }

  void receive(void* data, size_t bytes) override {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return sent_.size() - received_ >= bytes || has_left_; });
    if (sent_.size() - received_ < bytes) throw PeerLeft("the stage before has left its channel");
    std::memcpy(data, sent_.data() + received_, bytes);
    received_ += bytes;
    if (received_ < sent_.size()) return;
    sent_.clear();  // keeps its memory
    received_ = 0;
  }

  void leave() override {
    {
      const std::lock_guard lock(mutex_);
      has_left_ = true;
    }
    arrived_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::byte> sent_;
  size_t received_ = 0;  // of them
  bool has_left_ = false;
};

}  // namespace

std::unique_ptr<Channel> make_inproc_channel() {
  return std::make_unique<InprocChannel>();
}

}  // namespace invar
