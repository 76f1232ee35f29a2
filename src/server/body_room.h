// Memory for the bodies of requests: those that find none wait, in the order in which they came.
// Only http.cc and http_connection.cc include this.
#pragma once

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <list>
#include <memory>

namespace invar::server {

// On the serving thread alone.
class BodyRoom {
 public:
  explicit BodyRoom(size_t bytes) : state_(std::make_shared<State>(bytes)) {}

 private:
  struct Waiter;
  struct State {
    explicit State(size_t bytes) : all(bytes), free(bytes) {}
    void let_in();

    const size_t all;
    size_t free;
    std::list<Waiter*> waiting;
  };

 public:
  // What one body holds; given back when it goes.
  class Held {
   public:
    explicit Held(std::shared_ptr<State> state) : state_(std::move(state)) {}
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    // Whether it is one of so many bytes, or all that there are.
    bool is_enough(size_t bytes) const { return bytes_ >= std::min(bytes, state_->all); }

   private:
    friend class BodyRoom;
    std::shared_ptr<State> state_;
    size_t bytes_ = 0;
  };
  using Place = std::shared_ptr<Held>;

  Place none() const { return std::make_shared<Held>(state_); }
  // Makes the place one of `bytes`, at most all there are. False: there was no room in `patience`.
  boost::asio::awaitable<bool> grow(Held& place, size_t bytes, std::chrono::milliseconds patience);

 private:
  std::shared_ptr<State> state_;
};

}  // namespace invar::server
