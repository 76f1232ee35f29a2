#include "body_room.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace invar::server {

namespace asio = boost::asio;

struct BodyRoom::State {
  explicit State(size_t bytes) : all(bytes), free(bytes) {}

  // Whether every place can still get its claim if this one grows to `bytes`.
  bool may_grow(const Held& one, size_t bytes) const {
    if (bytes - one.bytes_ > free) return false;
    size_t there = free - (bytes - one.bytes_);
    for (const Held* place : places) {
      const size_t has = place == &one ? bytes : place->bytes_;
      if (place->claim_ - has > there) return false;
      there += has;
    }
    return true;
  }
  void let_in();
  // Tells those that have not grown since `then`, though they found room.
  void tell_slow(Clock::time_point then) const {
    const std::list<Held*> all_places = places;
    for (Held* place : all_places)
      if (!place->waits_ && place->bytes_ < place->claim_ && place->grown_ < then && place->on_slow)
        std::exchange(place->on_slow, nullptr)();
  }

  const size_t all;
  size_t free;
  std::list<Held*> places;  // the oldest first
  std::list<Waiter*> waiting;
};

struct BodyRoom::Waiter {
  Waiter(Held& place, size_t bytes, asio::steady_timer timer)
      : place(place), bytes(bytes), timer(std::move(timer)) {
    place.waits_ = true;
    place.state_->waiting.push_back(this);
  }
  ~Waiter() {
    place.waits_ = false;
    place.state_->waiting.remove(this);
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  Held& place;
  const size_t bytes;
  bool has_room = false;
  asio::steady_timer timer;
};

void BodyRoom::State::let_in() {
  for (Waiter* waiter : waiting) {
    Held& place = waiter->place;
    if (waiter->has_room || !may_grow(place, waiter->bytes)) continue;
    free -= waiter->bytes - place.bytes_;
    place.bytes_ = waiter->bytes;
    place.grown_ = Clock::now();
    waiter->has_room = true;
    waiter->timer.cancel();
  }
}

BodyRoom::BodyRoom(size_t bytes) : state_(std::make_shared<State>(bytes)) {}

BodyRoom::Held::Held(std::shared_ptr<State> state, size_t claim)
    : state_(std::move(state)), claim_(std::min(claim, state_->all)) {
  state_->places.push_back(this);
}

BodyRoom::Held::~Held() {
  state_->places.remove(this);
  state_->free += bytes_;
  state_->let_in();
}

void BodyRoom::Held::complete() {
  claim_ = bytes_;
  state_->let_in();
}

asio::awaitable<bool> BodyRoom::grow(Held& place, size_t bytes,
                                     std::chrono::milliseconds patience) {
  constexpr std::chrono::seconds kLook{1};
  const std::shared_ptr<State> state = place.state_;
  if (place.has(bytes)) co_return true;
  const auto begin = Clock::now();
  Waiter waiter(place, std::min(bytes, place.claim_),
                asio::steady_timer(co_await asio::this_coro::executor));
  state->let_in();
  while (!waiter.has_room && Clock::now() < begin + patience) {
    waiter.timer.expires_at(std::min<Clock::time_point>(begin + patience, Clock::now() + kLook));
    boost::system::error_code ignored;
    co_await waiter.timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    const auto now = Clock::now();
    if (!waiter.has_room && now - begin >= kPace) state->tell_slow(now - kPace);
  }
  co_return waiter.has_room;
}

}  // namespace invar::server
