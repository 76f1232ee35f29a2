// POST /admin/weights: the server goes on with another checkpoint of its model. Answers that have
// begun end with the weights that they began with; those that come meanwhile wait for the new ones.
#include "api.h"
#include "base/error.h"
#include "errors.h"

namespace invar::server {

namespace {

std::string directory_of(const HttpRequest& request) {
  const json::Value body = json::parse(request.body, "the body of the request");
  const json::Value* model = body.is_object() ? body.find("model") : nullptr;
  if (!model || !model->is_string() || model->as_string().empty())
    throw ApiError{400, "expected {\"model\": DIRECTORY} as the body of the request", "", "model"};
  return model->as_string();
}

}  // namespace

void Server::with_weights(std::function<void(WeightsLease)> task) {
  if (swap_ || is_held()) return behind_swap_.push_back(std::move(task));
  ++leases_;
  task(WeightsLease(nullptr, [this](void*) {  // whoever lets go of it last, on whatever thread
    http_.post([this] {
      --leases_;
      swap_when_free();
    });
  }));
}

void Server::take_weights(std::shared_ptr<Exchange> exchange) {
  std::string directory;
  try {
    directory = directory_of(exchange->request);
  } catch (const Error& error) {
    throw ApiError{400, error.what()};
  }
  expect_weights();
  change_at_rest(std::move(exchange), [this, directory]() -> json::Value {
    const std::string before = to_hex(backend_.facts().weights);
    backend_.take_weights(directory);
    http_.post([this] { weight_version_ = to_hex(backend_.facts().weights).substr(0, 16); });
    return json::Object{{"model", directory},
                        {"weights", to_hex(backend_.facts().weights)},
                        {"before", before},
                        {"system_fingerprint", admission_.fingerprint()}};
  });
}

void Server::change_at_rest(std::shared_ptr<Exchange> exchange,
                            std::function<json::Value()> change) {
  if (swap_) throw ApiError{409, "the weights or the engine are being changed already", "busy"};
  exchange->on_deadline = [this, asked = std::weak_ptr(exchange)] {
    if (swap_ && !swap_->has_begun && swap_->exchange == asked.lock())
      end_swap(
          error_reply({504, "answers that had begun did not end in time", "deadline_exceeded"}));
  };
  swap_ = Swap{std::move(exchange), std::move(change)};
  swap_when_free();
}

void Server::swap_when_free() {
  if (keeps_answers_ && leases_ == 0 && !streams_.is_frozen()) streams_.freeze(weight_version_);
  if (leases_ == 0 && streams_.computed() == 0)
    for (const auto& [exchange, reply] : std::exchange(until_rest_, {}))
      if (!exchange->is_answered()) exchange->reply({.body = reply});
  if (!swap_ || swap_->has_begun || leases_ > 0 || streams_.computed() > 0) return;
  swap_->has_begun = true;
  changes_.post([this, change = swap_->change] {
    HttpReply reply;
    try {
      reply.body = json::dump(change());
    } catch (const Error& error) {
      reply = error_reply({400, error.what()});
    } catch (const std::exception& error) {
      reply = error_reply({500, error.what()});
    }
    http_.post([this, reply] { end_swap(reply); });
  });
}

void Server::end_swap(const HttpReply& reply) {
  swap_->exchange->reply(reply);
  swap_.reset();
  for (auto& task : std::exchange(behind_swap_, {})) with_weights(std::move(task));
  thaw();
}

}  // namespace invar::server
