#include "translated.h"

#include "base/error.h"

namespace invar::server {

namespace {

// The events of a stream in another form, each when it has come whole; comments as they are.
class TranslatedEvents final : public BodySource {
 public:
  TranslatedEvents(std::shared_ptr<BodySource> source, Translated::Back back)
      : source_(std::move(source)), back_(std::move(back)) {}

  bool pull(std::string& out) override {
    const bool goes_on = source_->pull(waiting_);
    size_t begin = 0;
    for (size_t end; (end = waiting_.find("\n\n", begin)) != std::string::npos; begin = end + 2)
      append(std::string_view(waiting_).substr(begin, end - begin), out);
    waiting_.erase(0, begin);
    if (!goes_on) out += waiting_;
    return goes_on;
  }
  bool is_ready() const override { return source_->is_ready(); }

 private:
  void append(std::string_view event, std::string& out) const {
    constexpr std::string_view kData = "data: ";
    const std::string_view said = event.starts_with(kData) ? event.substr(kData.size()) : "";
    if (said.empty() || said == "[DONE]") {
      out.append(event).append("\n\n");
      return;
    }
    std::string shown;
    try {
      shown = json::dump(back_(json::parse(said, "an event")));
    } catch (const std::exception& error) {
      shown = error_reply({500, error.what()}).body;
    }
    out.append(kData).append(shown).append("\n\n");
  }

  std::shared_ptr<BodySource> source_;
  Translated::Back back_;
  std::string waiting_;  // for its end
};

}  // namespace

std::shared_ptr<Translated> Translated::make(std::shared_ptr<Exchange> client, std::string path,
                                             std::string body, Forms forms, Threads threads) {
  const auto inner = std::make_shared<Translated>();
  // Given back on the serving thread, whichever lets go of the exchange last.
  inner->body_place = std::shared_ptr<void>(
      nullptr, [place = std::move(client->body_place), serving = threads.serving](void*) mutable {
        serving([last = std::move(place)] {});
      });
  client->drop_body();
  inner->request = client->request;
  inner->request.path = std::move(path);
  inner->request.body = std::move(body);
  inner->arrival = client->arrival;
  inner->forms_ = std::move(forms);
  inner->threads_ = std::move(threads);
  const std::weak_ptr weak(inner);
  client->on_gone = [weak] {
    if (const auto one = weak.lock(); one && one->on_gone) one->on_gone();
  };
  client->on_deadline = [weak] {
    const auto one = weak.lock();
    if (!one || one->is_answered()) return;
    if (one->on_deadline) return one->on_deadline();
    one->reply(error_reply({504, kTooLate, "deadline_exceeded"}));
  };
  inner->client_ = std::move(client);
  return inner;
}

HttpReply Translated::translated(HttpReply reply, BodySource* source) const {
  try {
    while (source && source->pull(reply.body)) {
    }
    reply.body = json::dump(forms_.answer(json::parse(reply.body, "an answer")));
  } catch (const std::exception& error) {
    reply = error_reply({500, error.what()});
  }
  return reply;
}

void Translated::send(HttpReply reply) {
  for (auto& header : more_headers) client_->more_headers.push_back(std::move(header));
  client_->reply(std::move(reply));
}

void Translated::translate_later(HttpReply reply, std::shared_ptr<BodySource> source) {
  answered_ = true;
  const auto answer = std::make_shared<HttpReply>(std::move(reply));
  const size_t bytes = source ? SIZE_MAX : answer->body.size();  // a source is there for long ones
  threads_.pool(bytes, [self = shared_from_this(), answer, source]() mutable {
    *answer = self->translated(std::move(*answer), source.get());
    source = nullptr;
    self->threads_.serving([self, answer] { self->send(std::move(*answer)); });
  });
}

void Translated::reply(HttpReply reply) {
  if (is_answered()) return;
  if (reply.status == 200) return translate_later(std::move(reply), nullptr);
  answered_ = true;
  send(std::move(reply));
}

// A long answer that is no stream of events can be had as a whole.
void Translated::stream(HttpReply head, std::shared_ptr<BodySource> source) {
  if (is_answered()) return;
  const bool is_events = head.type.starts_with("text/event-stream");
  if (!forms_.event || !is_events) return translate_later(std::move(head), std::move(source));
  answered_ = true;
  for (auto& header : more_headers) client_->more_headers.push_back(std::move(header));
  client_->stream(std::move(head),
                  std::make_shared<TranslatedEvents>(std::move(source), forms_.event));
}

}  // namespace invar::server
