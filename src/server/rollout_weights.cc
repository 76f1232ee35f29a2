// Weights under SGLang's names, and what bodies that ask for weights have in common.
#include <algorithm>

#include "api.h"
#include "base/error.h"
#include "errors.h"
#include "trainer_bodies.h"

namespace invar::server {

std::optional<std::string> text_of(const json::Value& body,
                                   std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const json::Value* found = body.find(name); found && !found->is_null())
      return text_member(*found, name);
  return std::nullopt;
}

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

void Server::change_weights(const std::function<void()>& take) {
  const Digest before = backend_.facts().weights;
  try {
    take();
  } catch (...) {
    if (const Digest now = backend_.facts().weights; now != before)
      http_.post([this, name = to_hex(now).substr(0, 16)] { weight_version_ = name; });
    throw;
  }
}

void Server::take_version(std::shared_ptr<Exchange> exchange, const std::string& directory,
                          const std::string& version, std::function<json::Value()> reply) {
  expect_weights();
  change_at_rest(std::move(exchange), [this, directory, version, reply] {
    change_weights([&] { backend_.take_weights(directory); });
    http_.post([this, version] {
      weight_version_ = version;
      spool_ = nullptr;
    });
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

namespace {

const json::Value kDone = json::Object{{"success", true}, {"message", "done"}};

}  // namespace

// {"selector": "all" | "target"}: a session of updates; those from a disk need none.
void Server::begin_session(std::shared_ptr<Exchange> exchange) {
  const std::string selector = text_of(json_body(exchange->request), {"selector"}).value_or("all");
  if (selector != "all" && selector != "target")
    throw ApiError{400,
                   fmt::format("expected the selector all or target, found {}: a drafter's weights "
                               "are those of the start",
                               json::quoted(selector)),
                   "", "selector"};
  exchange->reply({.body = json::dump(kDone)});
}

void Server::end_session(std::shared_ptr<Exchange> exchange) {
  exchange->reply({.body = json::dump(kDone)});
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
