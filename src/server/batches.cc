#include "batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "admission.h"
#include "base/json.h"
#include "errors.h"

namespace invar::server {

namespace {

// The line of a file of answers, as OpenAI's batches have it.
std::string answer_line(const std::string& batch, const BatchLine& line, const HttpReply& reply) {
  std::string text;
  json::ObjectWriter out(text);
  json::append_quoted(out.member("id"), fmt::format("batch_req_{}_{}", batch, line.number));
  json::append_quoted(out.member("custom_id"), line.custom_id);
  std::string& response = out.member("response");
  json::ObjectWriter inner(response);
  inner.member("status_code") += std::to_string(reply.status);
  json::append_quoted(inner.member("request_id"), fmt::format("{}_{}", batch, line.number));
  inner.member("body") += reply.body;  // JSON on one line
  inner.end();
  out.member("error") += "null";
  out.end();
  return text;
}

}  // namespace

// One request: its reply goes to the batch.
class Batches::Line final : public Exchange {
 public:
  Line(std::function<void(HttpReply)> done, const Threads& threads)
      : done_(std::move(done)), threads_(threads) {}

  void reply(HttpReply one) override {
    if (!std::exchange(answered_, true)) done_(std::move(one));
  }
  // A long answer, which is no stream of events: it can be had as a whole.
  void stream(HttpReply head, std::shared_ptr<BodySource> source) override {
    if (std::exchange(answered_, true)) return;
    const auto whole = std::make_shared<HttpReply>(std::move(head));
    threads_.pool(
        [whole, source = std::move(source), done = done_, serving = threads_.serving]() mutable {
          while (source->pull(whole->body)) {
          }
          source = nullptr;
          serving([whole, done] { done(std::move(*whole)); });
        });
  }
  void wake() override {}
  bool is_gone() const override { return false; }
  bool is_answered() const override { return answered_; }

 private:
  std::function<void(HttpReply)> done_;
  const Threads& threads_;
  bool answered_ = false;
};

void Batches::tell(const std::exception& error) const {
  fmt::print(stderr, "invar: a batch stands still until the server starts again: {}\n",
             error.what());
}

void Batches::resume() {
  for (const Batch& batch : store_.unfinished()) begin(batch);
}

void Batches::begin(const Batch& batch) {
  running_[batch.id] = {.batch = batch, .is_cancelled = batch.status == Batch::Status::cancelling};
  order_.push_back(batch.id);
  if (batch.status == Batch::Status::cancelling) return settle(batch.id);
  go_on();
}

void Batches::cancel(const std::string& id) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  found->second.is_cancelled = true;
  settle(id);
}

// Batches take turns, line by line.
void Batches::go_on() {
  for (size_t tries = 0; asked_ < kAtOnce && !waits_ && tries < order_.size(); ++tries) {
    const std::string id = order_[next_++ % order_.size()];
    Running& one = running_.at(id);
    if (one.is_read || one.is_cancelled) continue;
    tries = 0;
    ++asked_;
    ++one.asked;
    // The next is read when this one's number is known.
    one.is_read = true;
    read_line(id, one.last);
  }
}

void Batches::read_line(const std::string& id, int64_t after) {
  threads_.pool([this, id, after] {
    try {
      const auto line = store_.next_line(id, after);
      threads_.serving([this, id, line] {
        Running& one = running_.at(id);
        if (line) {
          one.last = line->number;
          one.is_read = false;
          ask(id, *line);
        } else {
          --asked_;
          --one.asked;
          settle(id);
        }
        go_on();
      });
    } catch (const Error& error) {
      tell(error);
    }
  });
}

void Batches::ask(const std::string& id, const BatchLine& line) {
  const Running& one = running_.at(id);
  const auto exchange = std::make_shared<Line>(
      [this, id, line](const HttpReply& reply) { take(id, line, reply); }, threads_);
  exchange->request = {.method = "POST",
                       .path = one.batch.endpoint,
                       .query = {},
                       // After a crash the journal has the same answer.
                       .headers = {{"idempotency-key", fmt::format("{}/{}", id, line.number)}},
                       .body = line.body,
                       .asks_for = one.batch.owner};
  threads_.ask(exchange);
}

void Batches::take(const std::string& id, const BatchLine& line, const HttpReply& reply) {
  // There was no place for it: it is asked again.
  if (reply.status == 429 || reply.status == 503) {
    again_.emplace_back(id, line);
    if (!waits_)
      waits_ = threads_.later([this] {
        waits_ = nullptr;
        for (const auto& [batch, one] : std::exchange(again_, {})) ask(batch, one);
        go_on();
      });
    return;
  }
  int64_t& bytes = running_.at(id).bytes;
  bytes += std::ssize(reply.body);
  const auto kept = std::make_shared<HttpReply>(
      bytes <= kMostBytes
          ? reply
          : error_reply({507, fmt::format("expected answers of a batch of at most {} bytes, found "
                                          "more",
                                          kMostBytes)}));
  threads_.pool([this, id, line, kept] {
    try {
      store_.add_answer(id, line.number, kept->status != 200, answer_line(id, line, *kept));
      threads_.serving([this, id] {
        --asked_;
        --running_.at(id).asked;
        settle(id);
        go_on();
      });
    } catch (const Error& error) {
      tell(error);
    }
  });
}

// Ends a batch of which nothing is left to be done.
void Batches::settle(const std::string& id) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  const Running& one = found->second;
  if (one.asked > 0 || !(one.is_read || one.is_cancelled)) return;
  const auto status = one.is_cancelled ? Batch::Status::cancelled : Batch::Status::completed;
  running_.erase(found);
  std::erase(order_, id);
  threads_.pool([this, id, status] {
    try {
      store_.end_batch(id, status, static_cast<int64_t>(std::time(nullptr)), random_id("file-"),
                       random_id("file-"));
    } catch (const Error& error) {
      tell(error);
    }
  });
}

}  // namespace invar::server
