// An exchange that stands between an answer and its client, where the client has some of the answer
// already or is still to come: after a crash, answers go on without their clients until these ask
// for the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "http.h"

namespace invar::server {

// Lives on the serving thread, as every exchange.
class Relay final : public Exchange, public std::enable_shared_from_this<Relay> {
 public:
  // Without `client` the answer waits for one; nothing is lost meanwhile.
  static std::shared_ptr<Relay> make() { return std::make_shared<Relay>(); }
  // The answer goes on whether it has clients or none: they come, each to all of the stream from
  // an event on, and go.
  static std::shared_ptr<Relay> make_kept();
  // Hands everything to `client`, of a stream all but its first `skip` events. Once, unless the
  // stream is kept.
  void connect(std::shared_ptr<Exchange> client, int64_t skip);
  bool is_kept() const { return kept_ != nullptr; }
  // Ends a kept stream where it is.
  void cut_off();

  void reply(HttpReply reply) override;
  void stream(HttpReply head, std::shared_ptr<BodySource> source) override;
  void wake() override;
  bool is_gone() const override { return client_ && client_->is_gone(); }
  bool is_answered() const override {
    return kept_ ? whole_ || head_ : client_ && client_->is_answered();
  }

  // A stream so far.
  struct Kept {
    std::string bytes;
    bool is_over = false;
  };

 private:
  void pass_on();
  void join(std::shared_ptr<Exchange> client, int64_t skip);
  void keep();

  struct Reader {
    std::shared_ptr<Exchange> client;
    int64_t skip;
  };
  void hand_to(const Reader& reader);

  std::shared_ptr<Exchange> client_;
  int64_t skip_ = 0;
  std::optional<HttpReply> whole_, head_;
  std::shared_ptr<BodySource> source_;
  std::string waiting_;  // what the source gave while there was no client
  bool source_is_over_ = false;
  std::shared_ptr<Kept> kept_;
  std::vector<Reader> readers_;  // of what is kept
};

// Cuts the first `skip` server-sent events off a body that comes in pieces.
class EventSkipper {
 public:
  explicit EventSkipper(int64_t skip) : skip_(skip) {}
  // Appends to `out` what is left of the next piece.
  void push(std::string_view piece, std::string& out);

 private:
  int64_t skip_;
  bool newline_ = false;  // the last byte that was cut off ended a line
};

}  // namespace invar::server
