// Memory that goes back while an RL stack trains where the engine computes: vLLM's /sleep and
// /wake_up, SGLang's /release_memory_occupation and /resume_memory_occupation. Requests that come
// meanwhile wait.
#include "api.h"
#include "base/error.h"
#include "errors.h"
#include "query.h"

namespace invar::server {

namespace {

// The tags of a body, {"tags": [texts]}, or of a query, tags=A&tags=B. No tags mean all.
std::vector<std::string> tags_of(const HttpRequest& request) {
  std::vector<std::string> tags;
  std::string_view query = request.query;
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    if (query.substr(0, end).starts_with("tags=")) tags.emplace_back(query.substr(5, end - 5));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  const json::Value body = json_body(request);
  const json::Value* found = body.find("tags");
  if (!found || found->is_null()) return tags;
  if (!found->is_array())
    throw ApiError{400, fmt::format("expected tags as a list, found {}", found->type_name()), "",
                   "tags"};
  for (const json::Value& tag : found->as_array()) tags.push_back(text_member(tag, "tags"));
  return tags;
}

// SGLang's have graphs beside vLLM's, which need no memory here.
Wake wake_of(std::vector<std::string> tags) {
  const bool all = tags.empty();
  std::erase(tags, "cuda_graph");
  try {
    return tags.empty() && !all ? Wake{.kv_cache = false, .weights = false} : Wake::of_tags(tags);
  } catch (const Error& error) {
    throw ApiError{400, error.what(), "", "tags"};
  }
}

int64_t level_of(const HttpRequest& request) {
  const json::Value body = json_body(request);
  const std::string_view asked = query_parameter(request.query, "level").value_or("1");
  const json::Value* found = body.find("level");
  const std::string level = found && !found->is_null() ? json::dump(*found) : std::string(asked);
  if (level.size() != 1 || level[0] < '0' || level[0] > '2')
    throw ApiError{400, fmt::format("expected the level 0, 1 or 2, found {}", json::quoted(level)),
                   "", "level"};
  return level[0] - '0';
}

}  // namespace

void Server::expect_awake() const {
  if (asleep_)
    throw ApiError{409, "expected an engine that is awake, found one that sleeps: wake it up first",
                   "asleep"};
}

void Server::expect_weights() const {
  if (asleep_ && asleep_->weights != Sleep::Weights::stay)
    throw ApiError{409,
                   "expected weights in memory, found them asleep: wake up the tag weights first",
                   "asleep"};
}

// ?level=, mode=: 0 gives nothing back. "abort" ends what has begun, which else comes to its end.
void Server::sleep(std::shared_ptr<Exchange> exchange) {
  const int64_t level = level_of(exchange->request);
  const std::string_view mode = query_parameter(exchange->request.query, "mode").value_or("wait");
  if (mode != "abort" && mode != "wait" && mode != "keep")
    throw ApiError{
        400, fmt::format("expected the mode abort, wait or keep, found {}", json::quoted(mode))};
  const Sleep what =
      level == 0 ? Sleep{.kv_cache = false} : Sleep::of_level(static_cast<int>(level));
  if (mode == "abort" && !swap_)
    streams_.end_all({503, "the answer was ended since the engine goes to sleep", "aborted"});
  sleep_so(std::move(exchange), what);
}

// Weights are read again when they are taken back.
void Server::release_memory(std::shared_ptr<Exchange> exchange) {
  const Wake tags = wake_of(tags_of(exchange->request));
  sleep_so(std::move(exchange),
           {.kv_cache = tags.kv_cache,
            .weights = tags.weights ? Sleep::Weights::lost : Sleep::Weights::stay});
}

void Server::sleep_so(std::shared_ptr<Exchange> exchange, const Sleep& what) {
  change_at_rest(std::move(exchange), [this, what]() -> json::Value {
    backend_.sleep(what);
    http_.post([this, what] { note_asleep(what); });
    return json::Object{{"status", "asleep"}, {"message", "asleep"}};
  });
}

void Server::note_asleep(const Sleep& what) {
  if (!asleep_) asleep_ = Sleep{.kv_cache = false};
  asleep_->kv_cache |= what.kv_cache;
  if (what.weights != Sleep::Weights::stay) asleep_->weights = what.weights;
  if (is_ending_) wake_to_end();
}

void Server::wake_up(std::shared_ptr<Exchange> exchange) {
  const std::vector<std::string> tags = tags_of(exchange->request);
  try {
    wake_so(std::move(exchange), Wake::of_tags(tags));
  } catch (const Error& error) {
    throw ApiError{400, error.what(), "", "tags"};
  }
}

void Server::resume_memory(std::shared_ptr<Exchange> exchange) {
  const Wake what = wake_of(tags_of(exchange->request));
  wake_so(std::move(exchange), what);
}

void Server::wake_so(std::shared_ptr<Exchange> exchange, const Wake& what) {
  change_at_rest(std::move(exchange), [this, what]() -> json::Value {
    backend_.wake(what);
    http_.post([this, what] { note_awake(what); });
    return json::Object{{"status", "awake"}, {"message", "awake"}};
  });
}

void Server::note_awake(const Wake& what) {
  if (!asleep_) return;
  if (what.kv_cache) asleep_->kv_cache = false;
  if (what.weights) asleep_->weights = Sleep::Weights::stay;
  if (!asleep_->any()) asleep_.reset();
}

void Server::wake_to_end() {
  changes_.post([this] {
    try {
      backend_.wake({});
    } catch (const std::exception& error) {  // who waits hears that it sleeps
      fmt::print(stderr, "invar: the engine does not wake up: {}\n", error.what());
    }
    http_.post([this] {
      asleep_.reset();
      release_held();
    });
  });
}

}  // namespace invar::server
