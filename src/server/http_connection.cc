#include "http_connection.h"

#include <fmt/format.h>

#include "connection.h"
#include "http_head.h"

namespace invar::server {

namespace {

constexpr size_t kBodyStep = 64 << 10;
// The bytes of all headers that have begun to come, and of one that finds room in any case.
constexpr size_t kMostHeadBytes = 16 << 20, kSmallHead = 4 << 10;
constexpr size_t kSmallBody = 64 << 10;  // is read without asking for room
constexpr size_t kCost = 2;  // bytes of memory that a body's byte takes, whose buffer grows
// Bytes of a refused body that are read while its client still sends: closed sooner, it would lose
// the reply.
constexpr size_t kMaxDiscarded = 64 << 20;
constexpr milliseconds kGoodbye{1000};

// A request whose body is not wanted, with the reply.
struct Unwanted {
  HttpReply reply;
};

}  // namespace

// When the time is up, whatever the connection waits for fails.
void Connection::set_deadline(milliseconds time) {
  deadline_.expires_after(time);
  deadline_.async_wait([self = weak_from_this()](const error_code& error) {
    const auto connection = self.lock();
    if (error || !connection ||
        connection->deadline_.expiry() > asio::steady_timer::clock_type::now())
      return;
    connection->timed_out_ = true;
    error_code ignored;
    connection->socket_.cancel(ignored);
  });
}

asio::awaitable<void> Connection::serve() {
  const auto self = shared_from_this();
  std::optional<HttpReply> refused;
  try {
    set_deadline(owner_.options.header_timeout);
    co_await stream_.handshake();
    while (keep_alive_ && !owner_.stopping) {
      std::optional<HttpRequest> request = co_await read_request();
      if (!request) break;
      exchange_ = std::make_shared<ConnectionExchange>(socket_.get_executor());
      exchange_->request = std::move(*request);
      if (place_) place_->complete();
      exchange_->body_place = std::move(place_);
      ++owner_.exchanges;
      co_await answer(exchange_);
      --owner_.exchanges;
      exchange_->let_go();
      exchange_ = nullptr;
    }
  } catch (const Refused& caught) {
    refused = owner_.refusal(caught.status, caught.sentence, caught.path);
  } catch (const Unwanted& caught) {
    refused = caught.reply;
  } catch (const boost::system::system_error&) {  // the client has gone or is too slow
  } catch (const std::exception& error) {         // of its answer, which ends here
    fmt::print(stderr, "invar: error: a connection failed: {}\n", error.what());
  }
  place_ = nullptr;
  if (refused) co_await refuse(*refused);
  if (exchange_) {
    --owner_.exchanges;
    exchange_->client_gone();
    exchange_->let_go();
    exchange_ = nullptr;
  }
  if (stream_.is_encrypted() && !timed_out_ && !refused && socket_.is_open()) {
    set_deadline(kGoodbye);
    co_await stream_.shut_down();
  }
  deadline_.cancel();
  close();
}

// False at the end of what the client sends.
asio::awaitable<bool> Connection::read_some() {
  try {
    co_return co_await stream_.append_some(in_, owner_.scratch);
  } catch (const boost::system::system_error&) {
    if (timed_out_) throw Refused{408, "the request did not come in time"};
    throw;
  }
}

// Holds room for a header that has not come as a whole, beside those of other connections.
void Connection::hold_head(size_t bytes) {
  owner_.head_bytes += bytes - head_bytes_;
  head_bytes_ = bytes;
  if (owner_.head_bytes > kMostHeadBytes && bytes > kSmallHead)
    throw Refused{503, "there is no room for the header of the request beside those of others"};
}

// Nothing when the client ends the connection between requests, or is silent there for too long.
asio::awaitable<std::optional<HttpRequest>> Connection::read_request() {
  RequestParser parser(owner_.options.max_header_bytes, owner_.options.max_body_bytes);
  is_head_ = false;
  try {
    if (!co_await read_into(parser)) co_return std::nullopt;
  } catch (Refused& refused) {
    refused.path = parser.path();
    throw;
  }
  deadline_.cancel();
  keep_alive_ = parser.keep_alive();
  is_http_10_ = parser.is_http_10();
  std::optional<HttpRequest> request = parser.take();
  is_head_ = request->method == "HEAD";
  co_return request;
}

// The whole of a request; false when there is none.
asio::awaitable<bool> Connection::read_into(RequestParser& parser) {
  if (in_.empty()) {
    std::string().swap(in_);
    set_deadline(owner_.options.idle_timeout);
    // Waits without a buffer, so that an idle connection has none; a socket that is encrypted says
    // nothing of when there is something to read.
    if (!stream_.is_encrypted())
      co_await socket_.async_wait(tcp::socket::wait_read, asio::use_awaitable);
    if (!co_await read_some()) co_return false;
  }
  set_deadline(owner_.options.header_timeout);
  size_t body_bytes = 0;
  bool in_body = false;
  while (!parser.put(in_)) {
    hold_head(parser.has_header() ? 0 : in_.size());
    if (parser.has_header() && !in_body) {
      in_body = true;
      co_await begin_body(parser);
    } else if (in_body) {
      co_await make_room(parser);
    }
    const size_t before = in_.size();
    if (!co_await read_some()) throw boost::system::system_error(asio::error::eof);
    if (in_body && (body_bytes += in_.size() - before) >= kBodyStep) {
      body_bytes = 0;
      set_deadline(owner_.options.body_timeout);
    }
  }
  hold_head(0);
  co_return true;
}

asio::awaitable<void> Connection::begin_body(RequestParser& parser) {
  const HttpRequest request = parser.head();
  is_head_ = request.method == "HEAD";
  const Passage passage = owner_.gate(request);
  if (passage.refusal) throw Unwanted{*passage.refusal};
  parser.limit_body(passage.max_body_bytes);
  co_await make_room(parser);
  if (parser.wants_continue()) co_await write("HTTP/1.1 100 Continue\r\n\r\n");
  set_deadline(owner_.options.body_timeout);
}

asio::awaitable<void> Connection::make_room(const RequestParser& parser) {
  const size_t whole = parser.announced().value_or(owner_.options.max_body_bytes);
  const size_t next = std::min(whole, parser.body_bytes() + kBodyStep);
  if (next <= kSmallBody || (place_ && place_->has(kCost * next))) co_return;
  deadline_.cancel();
  if (!place_) place_ = open_place(kCost * whole);
  if (!co_await owner_.bodies.grow(*place_, kCost * next, owner_.options.body_timeout))
    throw Refused{503, "there is no room for the body of the request beside those of others"};
  set_deadline(owner_.options.body_timeout);
}

BodyRoom::Place Connection::open_place(size_t most) {
  BodyRoom::Place place = owner_.bodies.open(most);
  place->on_slow = [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  };
  return place;
}

asio::awaitable<void> Connection::refuse(const HttpReply& reply) {
  keep_alive_ = false;
  timed_out_ = false;
  try {
    std::string bytes = head_of(reply, true);
    if (!is_head_) bytes += reply.body;
    co_await write(bytes);
    // Closing with unread input would reset the connection and lose the reply.
    set_deadline(kGoodbye);
    if (stream_.is_encrypted()) co_return co_await stream_.shut_down();
    co_await stream_.shut_down();
    for (size_t size = 0; size < kMaxDiscarded && co_await read_some(); in_.clear())
      size += in_.size();
  } catch (const Refused&) {
  } catch (const boost::system::system_error&) {
  }
}

void serve_connection(tcp::socket socket, ConnectionOwner& owner) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  const auto executor = socket.get_executor();
  const bool too_many = owner.connections.size() >= owner.options.max_connections;
  if (too_many && owner.tls) return;
  if (too_many) {  // a word that fits into any socket's buffer
    const HttpReply reply =
        owner.refusal(503, "the server has as many connections as it takes", "");
    const std::string bytes = bytes_of_head(reply, {}, {.closes = true}) + reply.body;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(bytes), ignored);
    return;
  }
  const auto connection = std::make_shared<Connection>(std::move(socket), owner);
  asio::co_spawn(executor, connection->serve(), [connection](const std::exception_ptr&) {});
}

// They were many and are few: what they held goes back.
void ConnectionOwner::note_connections() {
  constexpr size_t kMany = 256, kShare = 16;
  most_connections = std::max(most_connections, connections.size());
  if (most_connections < kMany || connections.size() > most_connections / kShare) return;
  most_connections = 0;
  if (on_calm && !stopping) on_calm();
}

void close_idle_connections(ConnectionOwner& owner) {
  for (Connection* connection : owner.connections)
    if (connection->is_idle()) connection->close();
}

}  // namespace invar::server
