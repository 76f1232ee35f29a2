#include "relay.h"

#include <algorithm>

#include "base/check.h"

namespace invar::server {

namespace {

// The bytes that were kept, and then those that the source goes on to give, without the first
// events.
class Rest final : public BodySource {
 public:
  Rest(std::string kept, std::shared_ptr<BodySource> source, bool source_is_over, int64_t skip)
      : kept_(std::move(kept)),
        source_(std::move(source)),
        is_over_(source_is_over),
        skipper_(skip) {}

  bool pull(std::string& out) override {
    std::string piece = std::exchange(kept_, {});
    if (!is_over_) is_over_ = !source_->pull(piece);
    skipper_.push(piece, out);
    return !is_over_;
  }
  bool is_ready() const override { return !is_over_ && source_->is_ready(); }

 private:
  std::string kept_;
  std::shared_ptr<BodySource> source_;
  bool is_over_;
  EventSkipper skipper_;
};

// A client's view of a kept stream: from an event on, as it comes.
class KeptRest final : public BodySource {
 public:
  KeptRest(std::shared_ptr<const Relay::Kept> of, int64_t skip)
      : of_(std::move(of)), skipper_(skip) {}

  bool pull(std::string& out) override {
    skipper_.push(std::string_view(of_->bytes).substr(at_), out);
    at_ = of_->bytes.size();
    return !of_->is_over;
  }
  bool is_ready() const override { return at_ < of_->bytes.size() || of_->is_over; }

 private:
  std::shared_ptr<const Relay::Kept> of_;
  size_t at_ = 0;
  EventSkipper skipper_;
};

}  // namespace

std::shared_ptr<Relay> Relay::make_kept() {
  const auto relay = make();
  relay->kept_ = std::make_shared<Kept>();
  return relay;
}

void EventSkipper::push(std::string_view piece, std::string& out) {
  size_t at = 0;
  for (; skip_ > 0 && at < piece.size(); ++at) {
    const bool newline = piece[at] == '\n';
    if (newline && newline_) --skip_;  // a blank line ends an event
    newline_ = newline && !newline_;
  }
  out += piece.substr(at);
}

void Relay::connect(std::shared_ptr<Exchange> client, int64_t skip) {
  if (kept_) return join(std::move(client), skip);
  CHECK(!client_, "an answer has one client");
  client_ = std::move(client);
  request.path = client_->request.path;  // its errors are of that API
  skip_ = skip;
  client_->on_gone = [self = weak_from_this()] {
    const auto relay = self.lock();
    if (!relay) return;
    if (const auto tell = std::exchange(relay->on_gone, nullptr)) tell();
  };
  client_->on_deadline = [self = weak_from_this()] {
    const auto relay = self.lock();
    if (relay && relay->on_deadline) relay->on_deadline();
  };
  pass_on();
}

void Relay::join(std::shared_ptr<Exchange> client, int64_t skip) {
  request.path = client->request.path;
  client->on_gone = [self = weak_from_this(), gone = client.get()] {
    if (const auto relay = self.lock())
      std::erase_if(relay->readers_, [&](const Reader& r) { return r.client.get() == gone; });
  };
  readers_.push_back({std::move(client), skip});
  hand_to(readers_.back());
}

void Relay::hand_to(const Reader& reader) {
  if (whole_) return reader.client->reply(*whole_);
  if (head_) reader.client->stream(*head_, std::make_shared<KeptRest>(kept_, reader.skip));
}

// Takes what the source has and tells the clients.
void Relay::keep() {
  while (source_ && !kept_->is_over) {
    kept_->is_over = !source_->pull(kept_->bytes);
    if (!source_->is_ready()) break;
  }
  if (kept_->is_over) source_ = nullptr;  // which holds its exchange, this one
  if (!head_) return;
  for (const Reader& reader : std::vector(readers_)) reader.client->wake();
}

void Relay::cut_off() {
  if (!kept_) return;
  kept_->is_over = true;
  keep();
}

void Relay::pass_on() {
  if (whole_) {
    client_->reply(std::move(*whole_));
  } else if (head_) {
    client_->stream(std::move(*head_),
                    std::make_shared<Rest>(std::move(waiting_), std::exchange(source_, nullptr),
                                           source_is_over_, skip_));
  }
  whole_.reset();
  head_.reset();
}

void Relay::reply(HttpReply reply) {
  whole_ = std::move(reply);
  if (client_) pass_on();
  for (const Reader& reader : std::vector(readers_)) hand_to(reader);
}

void Relay::stream(HttpReply head, std::shared_ptr<BodySource> source) {
  head_ = std::move(head);
  source_ = std::move(source);
  for (const Reader& reader : std::vector(readers_)) hand_to(reader);
  client_ ? pass_on() : wake();
}

void Relay::wake() {
  if (kept_) return keep();
  if (client_) return client_->wake();
  while (source_ && !source_is_over_) {
    source_is_over_ = !source_->pull(waiting_);
    if (!source_->is_ready()) break;
  }
  if (source_is_over_) source_ = nullptr;  // which holds its exchange, this one
}

}  // namespace invar::server
