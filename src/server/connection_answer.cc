// How a connection sends what its exchange has for it.
#include <fmt/format.h>
#include <poll.h>

#include "connection.h"
#include "http_head.h"

namespace invar::server {

asio::awaitable<void> Connection::write(std::string_view bytes) {
  // Bytes that fit the socket's buffer, as a stream's events do, need neither a wait nor a
  // deadline.
  size_t sent = stream_.write_at_once(asio::buffer(bytes));
  if (sent == bytes.size()) co_return;
  set_deadline(owner_.options.write_timeout);
  while (sent < bytes.size()) {  // each piece has its own time
    sent += co_await stream_.write_some(asio::buffer(bytes.data() + sent, bytes.size() - sent));
    set_deadline(owner_.options.write_timeout);
  }
  deadline_.cancel();
}

std::string Connection::head_of(const HttpReply& reply, bool whole) const {
  return bytes_of_head(
      reply, exchange_ ? exchange_->more_headers : Headers(),
      {.whole = whole, .is_http_10 = is_http_10_, .closes = !keep_alive_ || owner_.stopping});
}

asio::awaitable<void> Connection::answer(std::shared_ptr<ConnectionExchange> exchange) {
  asio::co_spawn(socket_.get_executor(), watch(exchange), asio::detached);
  owner_.handler(exchange);
  while (!exchange->whole_ && !exchange->source_ && !exchange->gone_) co_await exchange->wait();
  if (exchange->whole_) {
    const std::string head = head_of(*exchange->whole_, true);
    std::string& bytes = exchange->whole_->body;
    is_head_ ? bytes = head : bytes.insert(0, head);
    if (!exchange->gone_) co_await write(bytes);
  } else if (is_head_ && !exchange->gone_) {
    co_await write(head_of(exchange->head_, false));
    // Nobody reads the rest: whoever computes it hears so, as if the client had gone.
    if (const auto tell = std::exchange(exchange->on_gone, nullptr)) tell();
  } else if (!exchange->gone_) {
    if (is_http_10_) keep_alive_ = false;
    co_await send_stream(exchange);
  }
  if (exchange->gone_) throw boost::system::system_error(asio::error::eof);
  exchange->over_ = true;
  exchange->on_gone = nullptr;
  error_code ignored;
  socket_.cancel(ignored);  // ends the watch
}

asio::awaitable<void> Connection::send_stream(std::shared_ptr<ConnectionExchange> exchange) {
  unsent_ = head_of(exchange->head_, false);
  sent_ = std::chrono::steady_clock::now();
  for (pull(*exchange);;) {
    co_await write(unsent_);
    unsent_.clear();
    if (!has_more_) break;
    if (exchange->source_->is_ready()) {  // others have their turn between its pieces
      co_await asio::post(socket_.get_executor(), asio::use_awaitable);
    } else {
      co_await wait_for_more(*exchange);
    }
    if (exchange->gone_) co_return;
    // Also beside what send_at_once left: it may have been woken again since.
    if (has_more_) pull(*exchange);
  }
  std::string().swap(unsent_);  // an idle connection has no buffers
  std::string().swap(piece_);
}

// Meanwhile events that fit the socket's buffer are sent (send_at_once). Where there are none for
// long, a comment, which clients read over.
asio::awaitable<void> Connection::wait_for_more(ConnectionExchange& exchange) {
  constexpr std::string_view kComment = ": still here\n\n";
  const bool has_events = exchange.head_.type.starts_with("text/event-stream");
  const milliseconds pause = owner_.options.comment_after;
  exchange.sender_ = this;
  while (
      !co_await exchange.wait(has_events ? sent_ + pause : asio::steady_timer::time_point::max())) {
    if (std::chrono::steady_clock::now() < sent_ + pause) continue;
    add_piece(kComment);
    break;
  }
  exchange.sender_ = nullptr;
}

void Connection::add_piece(std::string_view piece) {
  if (piece.empty()) return;
  sent_ = std::chrono::steady_clock::now();
  if (is_http_10_)
    unsent_ += piece;
  else
    fmt::format_to(std::back_inserter(unsent_), "{:x}\r\n{}\r\n", piece.size(), piece);
}

// Appends what the source has to what is to be sent.
void Connection::pull(ConnectionExchange& exchange) {
  piece_.clear();
  has_more_ = exchange.source_->pull(piece_);
  add_piece(piece_);
  if (!has_more_ && !is_http_10_) unsent_ += "0\r\n\r\n";
}

// While the stream waits: an event that fits the socket's buffer needs no coroutine to send it.
// False: the stream is to go on with what is left.
bool Connection::send_at_once(ConnectionExchange& exchange) {
  exchange.sender_ = nullptr;
  pull(exchange);
  unsent_.erase(0, stream_.write_at_once(asio::buffer(unsent_)));
  if (!has_more_ || !unsent_.empty()) return false;
  exchange.sender_ = this;
  return true;
}

// Notices that the client goes while its answer is made. One that only ends its side counts as
// gone: the two look alike.
asio::awaitable<void> Connection::watch(std::shared_ptr<ConnectionExchange> exchange) {
  const auto self = shared_from_this();
  asio::steady_timer pause(socket_.get_executor());
  while (!exchange->over_ && !exchange->gone_ && socket_.is_open()) {
    error_code error;
    if (in_.empty() && socket_.available(error) == 0)
      co_await socket_.async_wait(tcp::socket::wait_read,
                                  asio::redirect_error(asio::use_awaitable, error));
    if (exchange->over_ || !socket_.is_open()) co_return;
    if (client_has_gone()) {
      exchange->client_gone();
      co_return;
    }
    // The next request waits already: the socket stays readable.
    pause.expires_after(milliseconds(50));
    co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
}

bool Connection::client_has_gone() {
  pollfd descriptor{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&descriptor, 1, 0) > 0;
}

}  // namespace invar::server
