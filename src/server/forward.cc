#include "forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "errors.h"
#include "request_rules.h"

namespace invar::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kPiece = 16 << 10;
constexpr size_t kMostPending = 64 << 10;  // of a body that its client has not taken
constexpr size_t kSmallBody = 64 << 10;    // is read before it is given on

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::any_of(names, [&](std::string_view one) {
    return std::ranges::equal(
        one, name, [](char a, char b) { return a == (b | (b >= 'A' && b <= 'Z' ? 32 : 0)); });
  });
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// The end of a stream that was cut off, as the API's own servers write it.
std::string error_event(const std::string& sentence, const std::string& path, bool has_events) {
  const std::string body = error_reply({.status = 503, .message = sentence}, path).body;
  if (!has_events) return path.starts_with("/api/") ? body + "\n" : std::string();
  if (path.starts_with("/v1/messages")) return "event: error\ndata: " + body + "\n\n";
  if (path.starts_with("/v1/responses"))
    return fmt::format("event: error\ndata: {}\n\n",
                       json::dump(json::Object{{"type", "error"},
                                               {"code", "server_error"},
                                               {"message", sentence},
                                               {"param", nullptr}}));
  return "data: " + body + "\n\ndata: [DONE]\n\n";
}

}  // namespace

asio::awaitable<void> Signal::wait() {
  error_code ignored;
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

// Bytes of what waits that may go.
size_t ForwardedBody::whole() const {
  if (!has_events_ || ended_) return pending_.size();
  const size_t end = pending_.rfind("\n\n");
  return end == pending_.npos ? 0 : end + 2;
}

bool ForwardedBody::pull(std::string& out) {
  const size_t size = whole();
  out.append(pending_, 0, size);
  pending_.erase(0, size);
  room_.give();
  return !ended_;
}

void ForwardedBody::end(std::string_view last) {
  pending_.resize(whole());  // an event that was cut off is none
  pending_ += last;
  ended_ = true;
  room_.give();
}

asio::awaitable<void> ForwardedBody::wait_for_room() {
  while (!ended_ && whole() > kMostPending) co_await room_.wait();
}

struct Forward::Answer {
  boost::beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  std::array<char, kPiece> piece;

  // The next bytes of the body; empty: it has ended.
  asio::awaitable<std::string_view> next(tcp::socket& socket) {
    auto& body = parser.get().body();
    while (!parser.is_done()) {
      body.data = piece.data();
      body.size = piece.size();
      error_code error;
      co_await http::async_read_some(socket, buffer, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
      if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
      if (const size_t size = piece.size() - body.size; size > 0)
        co_return std::string_view(piece.data(), size);
    }
    co_return std::string_view();
  }

  HttpReply head() const {
    constexpr std::string_view kOfConnection[] = {
        "connection",   "content-length", "transfer-encoding", "keep-alive",
        "content-type", "x-request-id",   "request-id"};
    const auto& got = parser.get();
    HttpReply reply{.status = static_cast<int>(got.result_int())};
    for (const auto& field : got) {
      const std::string_view name(field.name_string().data(), field.name_string().size());
      const std::string_view value(field.value().data(), field.value().size());
      if (field.name() == http::field::content_type) reply.type = value;
      if (!is_one_of(name, kOfConnection)) reply.headers.emplace_back(name, value);
    }
    return reply;
  }
};

void Forward::stop() {
  stopped_ = true;
  error_code ignored;
  socket_.close(ignored);
  if (body_) body_->end();
}

asio::awaitable<Forward::Outcome> Forward::ask(int port, bool keeps_404) {
  const std::shared_ptr<Exchange> exchange = exchange_;
  Answer answer;
  answer.parser.body_limit(boost::none);
  all_.restart();
  again_.restart();
  seen_ = 0;
  try {
    socket_ = tcp::socket(loop_);
    co_await socket_.async_connect({asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)},
                                   asio::use_awaitable);
    socket_.set_option(tcp::no_delay(true));
    const std::array<asio::const_buffer, 2> parts = {asio::buffer(head_),
                                                     asio::buffer(exchange->request.body)};
    co_await asio::async_write(socket_, parts, asio::use_awaitable);
    co_return co_await take(answer, keeps_404);
  } catch (const boost::system::system_error&) {
    if (seen_ > had_) {
      had_ = seen_;
      digest_ = all_.finish();
    }
    co_return stopped_ || exchange->is_gone() ? Outcome::answered : Outcome::cut;
  }
}

asio::awaitable<Forward::Outcome> Forward::take(Answer& answer, bool keeps_404) {
  co_await http::async_read_header(socket_, answer.buffer, answer.parser, asio::use_awaitable);
  const int status = static_cast<int>(answer.parser.get().result_int());
  if (status == 404 && !keeps_404) co_return Outcome::absent;
  const auto length = answer.parser.content_length();
  const bool is_small = length && *length <= kSmallBody;
  if (!body_ && (is_small || answer.parser.is_done())) {
    co_await take_whole(answer);
    co_return Outcome::answered;
  }
  if (!begin_stream(answer.head())) co_return Outcome::different;
  co_return co_await take_stream(answer);
}

asio::awaitable<void> Forward::take_whole(Answer& answer) {
  HttpReply reply = answer.head();
  while (true) {
    const std::string_view piece = co_await answer.next(socket_);
    if (piece.empty()) break;
    reply.body += piece;
  }
  exchange_->reply(std::move(reply));
}

// False where the client was told the beginning of another answer.
bool Forward::begin_stream(HttpReply head) {
  if (body_) return head.status == 200;
  body_ = std::make_shared<ForwardedBody>(loop_, head.type.starts_with("text/event-stream"));
  exchange_->stream(std::move(head), body_);
  return true;
}

asio::awaitable<Forward::Outcome> Forward::take_stream(Answer& answer) {
  while (true) {
    const std::string_view piece = co_await answer.next(socket_);
    if (stopped_ || exchange_->is_gone()) co_return Outcome::answered;
    if (piece.empty()) break;
    if (!show(piece)) co_return Outcome::different;
    exchange_->wake();
    co_await body_->wait_for_room();
  }
  if (seen_ < had_) co_return Outcome::different;
  body_->end();
  exchange_->wake();
  co_return Outcome::answered;
}

// False where these bytes differ from those that the client has.
bool Forward::show(std::string_view piece) {
  all_.update(bytes_of(piece));
  if (seen_ < had_) {
    const std::string_view old = piece.substr(0, had_ - seen_);
    again_.update(bytes_of(old));
    seen_ += old.size();
    piece.remove_prefix(old.size());
    if (seen_ == had_ && again_.finish() != digest_) return false;
  }
  seen_ += piece.size();
  body_->push(piece);
  return true;
}

void Forward::fail(const std::string& sentence) {
  const std::string& path = exchange_->request.path;
  if (!body_) return exchange_->reply(error_reply({.status = 503, .message = sentence}, path));
  body_->end(error_event(sentence, path, body_->has_events()));
  exchange_->wake();
}

asio::awaitable<std::optional<std::string>> fetch(asio::io_context& loop, int port,
                                                  std::string head) {
  constexpr std::chrono::seconds kPatience{5};
  const auto opened = std::make_shared<tcp::socket>(loop);
  tcp::socket& socket = *opened;
  asio::steady_timer late(loop, kPatience);
  late.async_wait([opened](const error_code& error) {
    error_code ignored;
    if (!error) opened->close(ignored);
  });
  try {
    co_await socket.async_connect({asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)},
                                  asio::use_awaitable);
    co_await asio::async_write(socket, asio::buffer(head), asio::use_awaitable);
    boost::beast::flat_buffer buffer;
    http::response<http::string_body> reply;
    co_await http::async_read(socket, buffer, reply, asio::use_awaitable);
    if (reply.result() != http::status::ok) co_return std::nullopt;
    co_return std::move(reply.body());
  } catch (const boost::system::system_error&) {
    co_return std::nullopt;
  }
}

std::string forwarded_head(const HttpRequest& request, const std::string& secret,
                           const Headers& more) {
  constexpr std::string_view kOfConnection[] = {"host",           "connection",
                                                "content-length", "transfer-encoding",
                                                "keep-alive",     "te",
                                                "trailer",        "upgrade",
                                                "expect",         "proxy-connection",
                                                "origin",         kFrontHeader,
                                                "x-request-id"};
  const bool is_head = request.method == "HEAD";  // the server before cuts the answer off
  std::string head = fmt::format("{} {}{}{} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n",
                                 is_head ? "GET" : request.method, request.path,
                                 request.query.empty() ? "" : "?", request.query);
  for (const auto& [name, value] : request.headers)
    if (!is_one_of(name, kOfConnection)) head += fmt::format("{}: {}\r\n", name, value);
  for (const auto& [name, value] : more) head += fmt::format("{}: {}\r\n", name, value);
  return head + fmt::format("{}: {}\r\nContent-Length: {}\r\n\r\n", kFrontHeader, secret,
                            request.body.size());
}

}  // namespace invar::server
