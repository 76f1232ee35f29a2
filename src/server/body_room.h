// Memory for the bodies of requests. Room is taken as bytes arrive; who finds none waits.
// Only http.cc and http_connection.cc include this.
#pragma once

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>

namespace invar::server {

// On the serving thread alone.
//
// Bodies that each wait for what another one has would wait forever. So room is given only while
// every body could still become as large as it may, one after another in the order in which they
// began (the banker's algorithm): the oldest is never refused.
class BodyRoom {
 public:
  explicit BodyRoom(size_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiter;
  struct State;

 public:
  // The room that one body holds; given back when it goes.
  class Held {
   public:
    // `claim`: what it may hold at most; no more than there is counts.
    Held(std::shared_ptr<State> state, size_t claim);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    bool has(size_t bytes) const { return bytes_ >= std::min(bytes, claim_); }
    // It asks for no more.
    void complete();

    std::function<void()> on_slow;  // it has not grown for kPace while others waited for room

   private:
    friend class BodyRoom;
    std::shared_ptr<State> state_;
    size_t claim_, bytes_ = 0;
    bool waits_ = false;
    Clock::time_point grown_ = Clock::now();
  };
  using Place = std::shared_ptr<Held>;

  Place open(size_t claim) const { return std::make_shared<Held>(state_, claim); }
  // Makes the place one of `bytes`, at most its claim. False: there was no room in `patience`.
  boost::asio::awaitable<bool> grow(Held& place, size_t bytes, std::chrono::milliseconds patience);

 private:
  static constexpr std::chrono::seconds kPace{4};

  std::shared_ptr<State> state_;
};

}  // namespace invar::server
