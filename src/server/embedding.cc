// Numbers of prompts on their way to their client.
#include "embedding.h"

#include "api.h"
#include "base/error.h"

namespace invar::server {

const Request* Embedding::next() {
  if (over_ || begun_ == requests_.size() || begun_ - there_ >= kAtOnce) return nullptr;
  return &requests_[begun_++];
}

void Embedding::on_vector(size_t index, std::vector<float> numbers) {
  if (over_) return;
  vectors_[index] = std::move(numbers);
  if (++there_ < vectors_.size()) return more();
  over_ = true;
  outcome_ = Outcome::finished;
  full();
}

void Embedding::fail(const std::string& sentence) {
  if (over_) return;
  over_ = true;
  outcome_ = Outcome::failed;
  failed(sentence);
}

// One for each text that is computed at the same time.
void Server::take_places(HeldSlots& slots, std::vector<Request>& requests, size_t bytes) const {
  const size_t places = std::min({requests.size(), Embedding::kAtOnce, slots.of().most_of_owner()});
  if (!slots.grow_to(places))
    throw ApiError{429,
                   fmt::format("the server makes at most {} answers at the same time, {} are being "
                               "made or wait and {} more are asked for",
                               slots.of().most(), slots.of().taken(), places),
                   "queue_full"};
  hold_memory(slots, bytes);
  share_fairly(slots, requests);
}

// On the worker: the texts are computed from now on, and the body is made on the worker again.
void Server::embed(const std::shared_ptr<Embedding>& embedding) {
  embedding->full = [this, weak = std::weak_ptr(embedding)] {
    const auto embedding = weak.lock();
    pool_.post(slow(embedding->exchange->request), [=, this] {
      guarded(embedding->exchange, [&] {
        const auto reply = std::make_shared<HttpReply>();
        reply->body = embedding->body();
        http_.post([this, embedding, reply] {
          embedding->give_back();
          embedding->exchange->reply(std::move(*reply));
          if (embedding->requests().size() > Embedding::kAtOnce) trim_memory();
        });
      });
    });
  };
  embedding->failed = [this, weak = std::weak_ptr(embedding)](const std::string& sentence) {
    refuse(*weak.lock()->exchange, {500, "the request failed: " + sentence});
  };
  streams_.number(embedding->requests());
  http_.post([this, embedding] { begin(embedding); });
}

void Server::begin(const std::shared_ptr<Embedding>& embedding) {
  Exchange& exchange = *embedding->exchange;
  if (exchange.is_answered() || exchange.is_gone())  // its deadline has passed
    return embedding->ended(Outcome::aborted);
  exchange.drop_body();
  streams_.add(embedding);
  // Weak: it holds its exchange, whose client may have gone already.
  exchange.on_gone = [this, weak = std::weak_ptr(embedding)] {
    if (const auto begun = weak.lock()) streams_.cancel(*begun);
  };
  exchange.on_deadline = [this, weak = std::weak_ptr(embedding)] {
    const auto late = weak.lock();
    if (!late || late->is_over()) return;
    streams_.cancel(*late);
    refuse(*late->exchange, {504, kTooLate, "deadline_exceeded"});
  };
  embedding->more = [this, weak = std::weak_ptr(embedding)] {
    if (const auto begun = weak.lock()) submit_next(begun);
  };
  submit_next(embedding);
}

void Server::submit_next(const std::shared_ptr<Embedding>& embedding) {
  Exchange& exchange = *embedding->exchange;
  try {
    while (const Request* request = embedding->next()) backend_.submit(*request);
  } catch (const EngineFailed& error) {
    streams_.cancel(*embedding);
    refuse(exchange, {503, error.what(), "engine_failed"});
  } catch (const Error& error) {
    streams_.cancel(*embedding);
    refuse(exchange, {400, error.what()});
  }
}

}  // namespace invar::server
