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

// Lives on the serving thread, as every exchange.
class Translated final : public Exchange {
 public:
  using Back = std::function<json::Value(const json::Value& answer)>;

  // `client` asks for `path` with `body`, and gets what `back` makes of a good answer.
  static std::shared_ptr<Translated> make(std::shared_ptr<Exchange> client, std::string path,
                                          std::string body, Back back);

  void reply(HttpReply reply) override;
  void stream(HttpReply head, std::shared_ptr<BodySource> source) override;
  void wake() override { client_->wake(); }
  bool is_gone() const override { return client_->is_gone(); }
  bool is_answered() const override { return client_->is_answered(); }

 private:
  std::shared_ptr<Exchange> client_;
  Back back_;
};

}  // namespace invar::server
