// A trainer's group, by which weights come from its GPU: what requests ask of it, one after the
// other, on a thread that waits for the trainer.
#pragma once

#include <functional>
#include <optional>

#include "base/json.h"
#include "errors.h"
#include "session/weight_receiver.h"
#include "worker.h"

namespace invar::server {

class Transfers {
 public:
  // Runs a task on the serving thread, whose all other calls are.
  using Post = std::function<void(std::function<void()>)>;
  // Hears what went wrong, if something did, and how much has come of the update.
  using Done = std::function<void(const std::optional<ApiError>&, const WeightReceiver::Counts&)>;

  // A null `receiver` takes nothing.
  Transfers(WeightReceiver* receiver, Post post) : receiver_(receiver), post_(std::move(post)) {}

  bool is_on() const { return receiver_ != nullptr; }
  bool is_busy() const { return is_busy_; }
  // All throw ApiError for what cannot be asked; `done` is called later. Joins the group of
  // {"master_address", "master_port", "rank_offset", "world_size"}: the trainer's rank 0 has a
  // store there, and waits in it for the others.
  void join(const json::Value& init_info, Done done);
  void leave(Done done);
  // Takes what rank 0 sends: {"names", "dtype_names", "shapes", "packed"}. `begins`: it is the
  // first of an update.
  void receive(const json::Value& update_info, bool begins, Done done);
  // The trainer sends what nobody takes: the group is over, once what is under way has ended.
  void abandon();
  // Whatever waits ends.
  void stop() {
    if (receiver_) receiver_->stop();
  }
  // Throws ApiError where the server takes no weights so.
  WeightReceiver& expect_receiver(const char* member) const;

 private:
  // How tensors are packed, unless an update says it.
  struct Packing {
    bool is_packed = false;
    int64_t piece_bytes = int64_t{1} << 30;
  };
  static Announcement announcement_of(const json::Value& info, const Packing& packing);
  static void read_packing(const json::Value& info, bool& is_packed, int64_t& piece_bytes);
  void run(std::function<WeightReceiver::Counts()> work, Done done);

  WeightReceiver* const receiver_;
  const Post post_;
  Packing packing_;
  bool is_busy_ = false;
  Worker worker_;
};

}  // namespace invar::server
