// A request that another server of this machine answers, and its answer on the way to the client.
// Only models_front.cc and forward.cc include this.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>

#include "base/sha256.h"
#include "http.h"

namespace invar::server {

// One coroutine gives it to others of the same thread.
class Signal {
 public:
  explicit Signal(boost::asio::io_context& loop)
      : timer_(loop, boost::asio::steady_timer::time_point::max()) {}
  // All that wait go on.
  void give() { timer_.cancel(); }
  boost::asio::awaitable<void> wait();

 private:
  boost::asio::steady_timer timer_;
};

// The body of an answer, a few pieces of which wait for the client. Of an event stream whole events
// alone are given on.
class ForwardedBody final : public BodySource {
 public:
  ForwardedBody(boost::asio::io_context& loop, bool has_events)
      : room_(loop), has_events_(has_events) {}

  bool pull(std::string& out) override;
  void push(std::string_view piece) { pending_ += piece; }
  // This was all, with `last` behind it.
  void end(std::string_view last = {});
  bool has_events() const { return has_events_; }
  // Until the client has taken most of what waits.
  boost::asio::awaitable<void> wait_for_room();

 private:
  size_t whole() const;

  Signal room_;
  std::string pending_;
  bool has_events_, ended_ = false;
};

// Asks a server for the answer of one exchange. An answer that is cut off, since that server died,
// goes on where another attempt gives the same bytes.
class Forward {
 public:
  // `head`: the request's, as it is sent, without its body, which stays with the exchange.
  Forward(boost::asio::io_context& loop, std::shared_ptr<Exchange> exchange, std::string head)
      : loop_(loop), exchange_(std::move(exchange)), head_(std::move(head)), socket_(loop) {}

  enum class Outcome {
    answered,   // or the client has gone
    absent,     // 404, which nobody has been told
    cut,        // before the end of the answer
    different,  // the attempt did not begin with what the client has
  };
  // `keeps_404`: the client is told of an answer 404, too.
  boost::asio::awaitable<Outcome> ask(int port, bool keeps_404);
  // Whether the client has the beginning of a stream.
  bool has_begun() const { return body_ != nullptr; }
  // The client has gone, or is told something else.
  void stop();
  // Ends an answer that was cut off: with the error in the form of the request's API.
  void fail(const std::string& sentence);

 private:
  struct Answer;
  boost::asio::awaitable<Outcome> take(Answer& answer, bool keeps_404);
  boost::asio::awaitable<void> take_whole(Answer& answer);
  boost::asio::awaitable<Outcome> take_stream(Answer& answer);
  bool show(std::string_view piece);
  bool begin_stream(HttpReply head);

  boost::asio::io_context& loop_;
  const std::shared_ptr<Exchange> exchange_;
  const std::string head_;
  boost::asio::ip::tcp::socket socket_;
  bool stopped_ = false;
  // A stream's bytes of this attempt, those that the client has of earlier ones and their digest.
  std::shared_ptr<ForwardedBody> body_;
  size_t seen_ = 0, had_ = 0;
  Sha256 all_, again_;
  Digest digest_{};
};

// The body of the answer to a request without one, where that is 200 and comes in a few seconds;
// `head` as above.
boost::asio::awaitable<std::optional<std::string>> fetch(boost::asio::io_context& loop, int port,
                                                         std::string head);

// The head of a request to a server of this machine that expects `secret`: the request's own, but
// for what is of the connection.
std::string forwarded_head(const HttpRequest& request, const std::string& secret,
                           const Headers& more);

}  // namespace invar::server
