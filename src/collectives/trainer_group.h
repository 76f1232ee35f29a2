// The group in which a trainer's rank 0 sends weights to engines by NCCL, as vLLM's engines join
// it: the id comes through a store that the trainer has.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/function_ref.h"
#include "collectives/nccl_library.h"
#include "collectives/tcp_store.h"
#include "device/device.h"

namespace invar {

class TrainerGroup {
 public:
  struct Meeting {
    std::string host;  // of the trainer's store
    int port = 0;
    int rank = 1, ranks = 2;
  };
  struct Piece {
    void* data = nullptr;  // in the device's memory
    size_t count = 0;
    Nccl::Type type = Nccl::Type::bytes;
  };
  // A trainer that is gone may have sent what is on its way.
  static constexpr auto kGrace = std::chrono::seconds(10);

  // Returns when every rank has joined. `patience`: for that, and then for each piece. The device
  // outlives it. Throws Error, one sentence, as `receive` does.
  TrainerGroup(const Meeting& meeting, Device& device, std::chrono::milliseconds patience,
               const std::stop_token& stop);
  ~TrainerGroup();

  // Takes what the trainer sends next. After an Error the group is over. For one thread.
  void receive(const Piece& piece, const std::stop_token& stop);

 private:
  class Watch;

  void join(const Meeting& meeting, const Deadline& deadline);
  void run(FunctionRef<void(Nccl::Stream)> begin);
  bool has_done();
  void give_up(const std::string& why);
  // Throws Error where it was given up.
  void expect_whole() const;

  Device& device_;
  const std::chrono::milliseconds patience_;
  const Nccl& nccl_;
  TcpStore store_;
  const std::unique_ptr<Stream> stream_;
  mutable std::mutex mutex_;  // guards what follows, and calls of NCCL
  Nccl::Comm comm_ = nullptr;
  std::string over_;  // empty: it goes on
};

}  // namespace invar
