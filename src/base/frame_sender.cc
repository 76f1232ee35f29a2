#include "base/frame_sender.h"

namespace invar {

FrameSender::FrameSender(std::shared_ptr<FrameSocket> socket)
    : socket_(std::move(socket)), thread_([this] { send_all(); }) {}

FrameSender::~FrameSender() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  woken_.notify_one();
  socket_->shut_down();
}

void FrameSender::post(uint8_t kind, std::string bytes) {
  {
    const std::lock_guard lock(mutex_);
    frames_.push_back({kind, std::move(bytes)});
  }
  woken_.notify_one();
}

void FrameSender::send_all() {
  while (true) {
    Frame frame;
    {
      std::unique_lock lock(mutex_);
      woken_.wait(lock, [this] { return ends_ || !frames_.empty(); });
      if (ends_) return;
      frame = std::move(frames_.front());
      frames_.pop_front();
    }
    if (!socket_->send(frame.kind, frame.bytes)) return;
  }
}

}  // namespace invar
