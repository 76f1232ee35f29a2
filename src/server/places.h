// How many answers may be made at the same time, over all requests: places for answers, and what
// one request holds of them.
#pragma once

#include <atomic>
#include <cstddef>

namespace invar::server {

class Places {
 public:
  explicit Places(size_t most) : most_(most) {}
  size_t most() const { return most_; }
  size_t taken() const { return taken_; }

 private:
  friend class PlacesHeld;
  const size_t most_;
  std::atomic<size_t> taken_ = 0;
};

// Gives its places back when it goes. One thread at a time; `places` outlives it.
class PlacesHeld {
 public:
  explicit PlacesHeld(Places& places) : places_(places) {}
  ~PlacesHeld() { places_.taken_ -= held_; }
  PlacesHeld(const PlacesHeld&) = delete;
  PlacesHeld& operator=(const PlacesHeld&) = delete;

  const Places& of() const { return places_; }
  // Holds `answers` from now on, if there are so many.
  bool grow_to(size_t answers) {
    size_t taken = places_.taken_;
    do {
      if (taken - held_ + answers > places_.most_) return false;
    } while (!places_.taken_.compare_exchange_weak(taken, taken - held_ + answers));
    held_ = answers;
    return true;
  }
  // The same for what was promised before: nobody may refuse it.
  void insist_on(size_t answers) {
    places_.taken_ += answers - held_;
    held_ = answers;
  }

 private:
  Places& places_;
  size_t held_ = 0;
};

}  // namespace invar::server
