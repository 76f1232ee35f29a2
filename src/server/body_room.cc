#include "body_room.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace invar::server {

namespace asio = boost::asio;

struct BodyRoom::Waiter {
  Waiter(State& state, size_t bytes, asio::steady_timer timer)
      : state(state), bytes(bytes), timer(std::move(timer)) {
    state.waiting.push_back(this);
  }
  ~Waiter() { state.waiting.remove(this); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  State& state;
  const size_t bytes;
  bool has_room = false;
  asio::steady_timer timer;
};

void BodyRoom::State::let_in() {
  while (!waiting.empty() && waiting.front()->bytes <= free) {
    Waiter& first = *waiting.front();
    waiting.pop_front();
    free -= first.bytes;
    first.has_room = true;
    first.timer.cancel();
  }
}

BodyRoom::Held::~Held() {
  state_->free += bytes_;
  state_->let_in();
}

asio::awaitable<bool> BodyRoom::grow(Held& place, size_t bytes,
                                     std::chrono::milliseconds patience) {
  const std::shared_ptr<State> state = place.state_;
  bytes = std::min(bytes, state->all);
  if (bytes <= place.bytes_) co_return true;
  Waiter waiter(*state, bytes - place.bytes_,
                asio::steady_timer(co_await asio::this_coro::executor, patience));
  state->let_in();
  if (!waiter.has_room) {
    boost::system::error_code ignored;
    co_await waiter.timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  if (waiter.has_room) place.bytes_ = bytes;
  co_return waiter.has_room;
}

}  // namespace invar::server
