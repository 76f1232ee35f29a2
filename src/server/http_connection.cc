#include "http_connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <boost/asio.hpp>
#include <optional>

#include "http_head.h"
#include "http_parser.h"
#include "http_stream.h"

namespace invar::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

constexpr size_t kBodyStep = 64 << 10;
// The bytes of all headers that have begun to come, and of one that finds room in any case.
constexpr size_t kMostHeadBytes = 16 << 20, kSmallHead = 4 << 10;
constexpr size_t kSmallBody = 64 << 10;  // is read without asking for room
constexpr size_t kCost = 2;  // bytes of memory that a body's byte takes, whose buffer grows
// Of a refused body, while its client still sends: closed sooner, it would lose the reply.
constexpr size_t kMaxDiscarded = 64 << 20;
constexpr milliseconds kGoodbye{1000};

// A request whose body is not wanted, with the reply.
struct Unwanted {
  HttpReply reply;
};

}  // namespace

class ConnectionExchange;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, ConnectionOwner& owner)
      : stream_(std::move(socket), owner.tls.get()),
        socket_(stream_.socket()),
        deadline_(socket_.get_executor()),
        owner_(owner) {
    owner_.connections.insert(this);
    owner_.note_connections();
  }
  ~Connection() {
    owner_.head_bytes -= head_bytes_;
    owner_.connections.erase(this);
    owner_.note_connections();
  }

  asio::awaitable<void> serve();
  bool is_idle() const { return !exchange_; }
  void close() {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  friend class ConnectionExchange;
  asio::awaitable<bool> read_some();
  void hold_head(size_t bytes);
  asio::awaitable<std::optional<HttpRequest>> read_request();
  asio::awaitable<bool> read_into(RequestParser& parser);
  // What is to be known before more of a body is read.
  asio::awaitable<void> begin_body(RequestParser& parser);
  // Room for what has come of the body and for what is read next.
  asio::awaitable<void> make_room(const RequestParser& parser);
  BodyRoom::Place open_place(size_t most);
  // The bytes must live until it is done.
  asio::awaitable<void> write(std::string_view bytes);
  asio::awaitable<void> answer(std::shared_ptr<ConnectionExchange> exchange);
  asio::awaitable<void> send_stream(std::shared_ptr<ConnectionExchange> exchange);
  asio::awaitable<void> wait_for_more(ConnectionExchange& exchange);
  void pull(ConnectionExchange& exchange);
  void add_piece(std::string_view piece);
  bool send_at_once(ConnectionExchange& exchange);
  asio::awaitable<void> refuse(const HttpReply& reply);
  asio::awaitable<void> watch(std::shared_ptr<ConnectionExchange> exchange);
  bool client_has_gone();
  std::string head_of(const HttpReply& reply, bool whole) const;
  void set_deadline(milliseconds time);

  HttpStream stream_;
  tcp::socket& socket_;
  asio::steady_timer deadline_;
  bool timed_out_ = false;
  ConnectionOwner& owner_;
  std::string in_;                       // read and not parsed
  size_t head_bytes_ = 0;                // of ConnectionOwner's
  BodyRoom::Place place_;                // of the body that is read
  std::string piece_, unsent_;           // of a stream
  bool has_more_ = false;                // the stream's source
  asio::steady_timer::time_point sent_;  // when it last gave something
  bool keep_alive_ = true, is_http_10_ = false;
  bool is_head_ = false;  // the request asks for the head of the answer alone
  std::shared_ptr<ConnectionExchange> exchange_;  // null: waits for a request
};

class ConnectionExchange final : public Exchange {
 public:
  explicit ConnectionExchange(const asio::any_io_executor& executor) : signal_(executor) {}

  void reply(HttpReply reply) override {
    if (whole_ || source_) return;
    whole_ = std::move(reply);
    wake();
  }
  void stream(HttpReply head, std::shared_ptr<BodySource> source) override {
    if (whole_ || source_) return;
    head_ = std::move(head);
    source_ = std::move(source);
    wake();
  }
  void wake() override {
    if (sender_ && !gone_ && sender_->send_at_once(*this)) return;
    signalled_ = true;
    signal_.cancel();
  }
  bool is_gone() const override { return gone_; }
  bool is_answered() const override { return whole_ || source_; }
  // Nothing more is sent: an answer holds its exchange, which must not hold the answer.
  // Its room goes here, too: others may hold it on their threads still.
  void let_go() {
    source_ = nullptr;
    body_place = held = nullptr;
  }
  void client_gone() {
    if (over_) return;
    gone_ = true;
    wake();
    const auto tell = std::exchange(on_gone, nullptr);
    if (tell) tell();
  }

 private:
  friend class Connection;

  // Until the next `wake`, which may have come already, or until `end`: false.
  asio::awaitable<bool> wait(
      asio::steady_timer::time_point end = asio::steady_timer::time_point::max()) {
    while (!signalled_) {
      error_code error;
      signal_.expires_at(end);
      co_await signal_.async_wait(asio::redirect_error(asio::use_awaitable, error));
      if (!error && !signalled_) co_return false;
    }
    signalled_ = false;
    co_return true;
  }

  Connection* sender_ = nullptr;  // one that waits for more of a stream
  asio::steady_timer signal_;
  bool signalled_ = false, gone_ = false;
  bool over_ = false;  // the answer is sent
  std::optional<HttpReply> whole_;
  HttpReply head_;
  std::shared_ptr<BodySource> source_;
};

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

asio::awaitable<void> Connection::write(std::string_view bytes) {
  // What fits the socket's buffer, as a stream's events do, needs neither a wait nor a deadline.
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
