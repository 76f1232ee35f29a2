// An exchange without a connection: what was answered is kept.
#pragma once

#include "server/http.h"

namespace invar::server {

struct FakeExchange final : Exchange {
  void reply(HttpReply one) override { replies.push_back(std::move(one)); }
  void stream(HttpReply head, std::shared_ptr<BodySource> source) override {
    while (source->pull(head.body)) {
    }
    replies.push_back(std::move(head));
  }
  void wake() override { ++wakes; }
  bool is_gone() const override { return gone; }
  bool is_answered() const override { return !replies.empty(); }

  std::vector<HttpReply> replies;
  int wakes = 0;
  bool gone = false;
};

}  // namespace invar::server
