// A connection and the exchange that it answers. Only http_connection.cc and connection_answer.cc
// include this.
#pragma once

#include <boost/asio.hpp>
#include <optional>

#include "http_connection.h"
#include "http_parser.h"

namespace invar::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

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
  // Checks that come before more of a body is read.
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
    body_place = nullptr;
    slots = nullptr;
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

}  // namespace invar::server
