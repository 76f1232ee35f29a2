// Weights under the names of RL stacks: SGLang's update from disk, vLLM's weight transfer with its
// disk back end, checkers of digests.
#include <algorithm>

#include "api.h"
#include "base/error.h"
#include "errors.h"

namespace invar::server {

namespace {

// The text of the first of these members that is there, or nothing.
std::optional<std::string> text_of(const json::Value& body,
                                   std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const json::Value* found = body.find(name); found && !found->is_null())
      return text_member(*found, name);
  return std::nullopt;
}

// A version is a text or a whole number, and a header of answers.
std::string version_of(const json::Value& body, const std::string& otherwise) {
  constexpr size_t kLongest = 1024;
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~'; };
  const json::Value* found = body.find("weight_version");
  const std::string version = !found || found->is_null() ? otherwise
                              : found->is_integer()      ? json::dump(*found)
                                                         : text_member(*found, "weight_version");
  if (version.size() > kLongest || !std::ranges::all_of(version, is_plain))
    throw ApiError{
        400, fmt::format("expected a weight_version of at most {} characters of ASCII", kLongest),
        "", "weight_version"};
  return version;
}

}  // namespace

std::string text_member(const json::Value& value, const char* name) {
  if (!value.is_string())
    throw ApiError{400, fmt::format("expected {} as a text, found {}", name, value.type_name()), "",
                   name};
  return value.as_string();
}

json::Value json_body(const HttpRequest& request) {
  try {
    json::Value body =
        request.body.empty() ? json::Value(json::Object{}) : parse_body(request.body);
    if (!body.is_object())
      throw ApiError{400, fmt::format("expected an object, found {}", body.type_name())};
    return body;
  } catch (const Error& error) {
    throw ApiError{400, error.what()};
  }
}

void Server::get_weight_version(std::shared_ptr<Exchange> exchange) {
  exchange->reply(
      {.body = json::dump(json::Object{{"weight_version", weight_version_},
                                       {"weights", to_hex(backend_.facts().weights)}})});
}

void Server::take_version(std::shared_ptr<Exchange> exchange, const std::string& directory,
                          const std::string& version, std::function<json::Value()> reply) {
  expect_weights();
  change_at_rest(std::move(exchange), [this, directory, version, reply] {
    backend_.take_weights(directory);
    http_.post([this, version] { weight_version_ = version; });
    return reply();
  });
}

// {"model_path": DIRECTORY, "load_format", "weight_version", "abort_all_requests"}: slime's full
// updates. With the last one nothing is waited for that runs.
void Server::update_from_disk(std::shared_ptr<Exchange> exchange) {
  const json::Value body = json_body(exchange->request);
  const auto directory = text_of(body, {"model_path"});
  if (!directory || directory->empty())
    throw ApiError{400, "expected {\"model_path\": DIRECTORY}", "", "model_path"};
  if (const auto format = text_of(body, {"load_format"}); format == "delta")
    throw ApiError{400,
                   "expected whole checkpoints (--update-weight-mode full), found the load "
                   "format delta",
                   "", "load_format"};
  const std::string version = version_of(body, *directory);
  const json::Value* aborts = body.find("abort_all_requests");
  if (aborts && !aborts->is_null() && !aborts->is_bool())
    throw ApiError{
        400,
        fmt::format("expected abort_all_requests as true or false, found {}", aborts->type_name()),
        "", "abort_all_requests"};
  if (aborts && *aborts == json::Value(true))
    streams_.end_all({503, "the answer was ended by an update of the weights", "aborted"});
  take_version(std::move(exchange), *directory, version, []() -> json::Value {
    return json::Object{
        {"success", true}, {"message", "the weights are served"}, {"num_paused_requests", 0}};
  });
}

// {"init_info": {...}}: of its back ends that of checkpoints on a disk that both see.
void Server::init_transfer(std::shared_ptr<Exchange> exchange) {
  const json::Value body = json_body(exchange->request);
  const json::Value* info = body.find("init_info");
  if (!info || !info->is_object())
    throw ApiError{400, "expected {\"init_info\": {...}}", "", "init_info"};
  if (info->find("master_address") || info->find("master_port"))
    throw ApiError{400,
                   "expected the back end disk, found an address to meet at (nccl): weights "
                   "come as directories in update_info",
                   "transport", "init_info"};
  exchange->reply({.body = json::dump(json::Object{{"message", "Weight transfer initialized"}})});
}

void Server::start_update(std::shared_ptr<Exchange> exchange) {
  update_.emplace();
  exchange->reply({.body = json::dump(json::Object{{"message", "Weight update started"}})});
}

// {"update_info": {"path": DIRECTORY}}: within start_update and finish_update the last one counts,
// outside of them it is taken at once.
void Server::update_weights(std::shared_ptr<Exchange> exchange) {
  const json::Value body = json_body(exchange->request);
  const json::Value* info = body.find("update_info");
  const auto directory =
      info && info->is_object()
          ? text_of(*info, {"path", "model_path", "checkpoint_path", "directory"})
          : std::nullopt;
  if (!directory || directory->empty())
    throw ApiError{400,
                   "expected {\"update_info\": {\"path\": DIRECTORY}}: tensors by nccl and ipc "
                   "are not supported",
                   "transport", "update_info"};
  if (update_) {
    update_ = *directory;
    return exchange->reply({.body = json::dump(json::Object{{"message", "Weights noted"}})});
  }
  take_version(std::move(exchange), *directory, version_of(*info, *directory), []() -> json::Value {
    return json::Object{{"message", "Weights updated"}};
  });
}

void Server::finish_update(std::shared_ptr<Exchange> exchange) {
  const json::Value body = json_body(exchange->request);
  if (!update_ || update_->empty())
    throw ApiError{400, "expected start_weight_update and update_weights before, found none"};
  const std::string version = version_of(body, *update_);
  const std::string directory = *std::exchange(update_, std::nullopt);
  take_version(std::move(exchange), directory, version, []() -> json::Value {
    return json::Object{{"message", "Weight update finished"}};
  });
}

// "checksum" says the weights' digest, "snapshot" remembers it, "compare" holds it against that or
// against "expected". A digest can be told without overwriting any weight.
void Server::check_weights(std::shared_ptr<Exchange> exchange) {
  const json::Value body = json_body(exchange->request);
  const std::string action = text_of(body, {"action"}).value_or("checksum");
  const std::string digest = to_hex(backend_.facts().weights);
  if (action == "snapshot") remembered_weights_ = digest;
  if (action == "compare") {
    const std::string expected =
        text_of(body, {"expected", "checksum"}).value_or(remembered_weights_);
    if (expected != digest)
      throw ApiError{400, fmt::format("the weights differ: expected {}, found {}",
                                      json::quoted(expected), digest)};
  } else if (action != "snapshot" && action != "checksum") {
    throw ApiError{400,
                   fmt::format("expected the action checksum, snapshot or compare, found {}",
                               json::quoted(action)),
                   "", "action"};
  }
  exchange->reply({.body = json::dump(json::Object{{"success", true},
                                                   {"message", action},
                                                   {"checksum", digest},
                                                   {"weight_version", weight_version_}})});
}

void Server::refuse_transport(std::shared_ptr<Exchange> exchange) {
  throw ApiError{
      400,
      fmt::format("{} is not supported: workers run no Python and join no group; weights "
                  "come as checkpoints by /update_weights_from_disk or /update_weights",
                  exchange->request.path),
      "transport"};
}

}  // namespace invar::server
