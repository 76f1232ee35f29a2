// An exchange that stands between an endpoint of our own and a client that speaks another form: the
// request is translated before, the answer after.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/json.h"
#include "errors.h"
#include "http.h"

namespace invar::server {

// Lives on the serving thread, as every exchange does.
class Translated final : public Exchange, public std::enable_shared_from_this<Translated> {
 public:
  using Back = std::function<json::Value(const json::Value& answer)>;
  // The client's forms of a whole answer and of an event of a stream; the second may be null, where
  // none is asked for.
  struct Forms {
    Back answer, event;
  };
  // Where the answer, of so many bytes, is translated, and where it is sent.
  struct Threads {
    std::function<void(size_t bytes, std::function<void()> task)> pool;
    std::function<void(std::function<void()> task)> serving;
  };

  // `client` asks for `path` with `body`, and gets what `forms` make of a good answer.
  static std::shared_ptr<Translated> make(std::shared_ptr<Exchange> client, std::string path,
                                          std::string body, Forms forms, Threads threads);

  void reply(HttpReply reply) override;
  void stream(HttpReply head, std::shared_ptr<BodySource> source) override;
  void wake() override { client_->wake(); }
  bool is_gone() const override { return client_->is_gone(); }
  bool is_answered() const override { return answered_ || client_->is_answered(); }

 private:
  // On a thread of the pool: what the client gets for this reply, whose body may still come.
  HttpReply translated(HttpReply reply, BodySource* source) const;
  void translate_later(HttpReply reply, std::shared_ptr<BodySource> source);
  void send(HttpReply reply);

  std::shared_ptr<Exchange> client_;
  Forms forms_;
  Threads threads_;
  bool answered_ = false;
};

}  // namespace invar::server
