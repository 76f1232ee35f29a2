// How many answers may be made at the same time and how much memory their requests may hold, over
// all and for each owner: slots for answers, and what one request holds of them.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>

namespace invar::server {

class AdmissionSlots {
 public:
  // `owners`: 2 where one owner has half of everything at most, so that others find some; else 1.
  AdmissionSlots(size_t most, size_t most_bytes, size_t owners)
      : most_(most), most_bytes_(most_bytes), owners_share_(owners) {}
  size_t most() const { return most_; }
  size_t most_of_owner() const { return std::max<size_t>(1, most_ / owners_share_); }
  size_t most_bytes() const { return most_bytes_; }
  size_t most_bytes_of_owner() const { return most_bytes_ / owners_share_; }
  size_t taken() const {
    const std::lock_guard lock(mutex_);
    return taken_;
  }

 private:
  friend class HeldSlots;
  struct Owner {
    size_t taken = 0, bytes = 0;
  };

  const size_t most_, most_bytes_, owners_share_;
  mutable std::mutex mutex_;  // guards what follows
  size_t taken_ = 0, bytes_ = 0;
  std::unordered_map<std::string, Owner> owners_;
};

// `slots` outlives it.
class HeldSlots {
 public:
  HeldSlots(AdmissionSlots& slots, std::string owner) : slots_(slots), owner_(std::move(owner)) {}
  ~HeldSlots() { give_back(); }
  HeldSlots(const HeldSlots&) = delete;
  HeldSlots& operator=(const HeldSlots&) = delete;

  const AdmissionSlots& of() const { return slots_; }
  // Holds `answers` from now on, if there are so many.
  bool grow_to(size_t answers);
  // So much more memory, which its request keeps until it goes, if there is so much.
  bool hold(size_t bytes);
  // The same for what was promised before: nobody may refuse it.
  void insist_on(size_t answers);
  // The owner, as the scheduler knows owners (Request::owner).
  int64_t owner_number() const;
  // Its slots and its memory, before the client hears that it has its answer: closures of other
  // threads may hold this object for longer. It holds nothing more after that.
  void give_back();

 private:
  AdmissionSlots& slots_;
  const std::string owner_;
  size_t held_ = 0, bytes_ = 0;
};

}  // namespace invar::server
