// Sends frames from a thread of its own: who posts one never waits for the other end, which may
// stand still with a full socket.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/frames.h"

namespace invar {

class FrameSender {
 public:
  explicit FrameSender(std::shared_ptr<FrameSocket> socket);
  // Shuts the socket down; what was not sent is lost.
  ~FrameSender();
  FrameSender(const FrameSender&) = delete;

  // Frames are sent in the order in which they are posted.
  void post(uint8_t kind, std::string bytes);

 private:
  void send_all();

  const std::shared_ptr<FrameSocket> socket_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable woken_;
  std::deque<Frame> frames_;
  bool ends_ = false;
  std::jthread thread_;
};

}  // namespace invar
