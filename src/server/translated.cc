#include "translated.h"

#include "base/error.h"

namespace invar::server {

std::shared_ptr<Translated> Translated::make(std::shared_ptr<Exchange> client, std::string path,
                                             std::string body, Back back) {
  const auto inner = std::make_shared<Translated>();
  inner->request = client->request;
  inner->request.path = std::move(path);
  inner->request.body = std::move(body);
  inner->arrival = client->arrival;
  inner->back_ = std::move(back);
  client->drop_body();
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

void Translated::reply(HttpReply reply) {
  if (reply.status == 200) {
    try {
      reply.body = json::dump(back_(json::parse(reply.body, "an answer")));
    } catch (const std::exception& error) {
      reply = error_reply({500, error.what()});
    }
  }
  for (auto& header : more_headers) client_->more_headers.push_back(std::move(header));
  client_->reply(std::move(reply));
}

// A long answer that is no stream of events: it can be had as a whole.
void Translated::stream(HttpReply head, std::shared_ptr<BodySource> source) {
  while (source->pull(head.body)) {
  }
  reply(std::move(head));
}

}  // namespace invar::server
