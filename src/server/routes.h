// A route: the function that answers a method and a path.
#pragma once

#include <string>
#include <string_view>

#include "api.h"
#include "door.h"

namespace invar::server {

// How a path may go on: with an id, with that and a word of what is asked of it, or with a name
// that may have slashes.
enum class PathRest { none, id, input_items, cancel, content, name };

// The word behind the id; null: none.
constexpr const char* word_of(PathRest rest) {
  return rest == PathRest::input_items ? "input_items"
         : rest == PathRest::cancel    ? "cancel"
         : rest == PathRest::content   ? "content"
                                       : nullptr;
}

inline bool path_matches(std::string_view path, PathRest rest, std::string_view asked) {
  if (rest == PathRest::none) return asked == path;
  if (!asked.starts_with(path) || asked.size() <= path.size()) return false;
  const std::string_view behind = asked.substr(path.size());
  const size_t slash = behind.find('/');
  if (const char* word = word_of(rest))
    return slash != behind.npos && slash > 0 && behind.substr(slash + 1) == word;
  return rest == PathRest::name || slash == behind.npos;
}

struct Server::Route {
  const char* method;
  const char* path;
  Endpoint endpoint;
  const Door& door;
  Keys::Need key = Keys::Need::client;
  using Rest = PathRest;
  Rest rest = Rest::none;

  bool matches(const std::string& asked) const { return path_matches(path, rest, asked); }
  // The parts of trainer_routes: those under SGLang's names, and under vLLM's.
  static std::vector<Route> of_sglang(), of_vllm();
};

}  // namespace invar::server
