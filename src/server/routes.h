// What stands at a path.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "api.h"

namespace invar::server {

struct Server::Route {
  const char* method;
  const char* path;
  Endpoint endpoint;
  Keys::Need key = Keys::Need::client;
  // The path goes on: with the id of an answer, or with a name that may have slashes.
  // Or with the id and the word of something that is kept beside it.
  enum class Rest { none, id, input_items, name } rest = Rest::none;

  bool matches(const std::string& asked) const {
    if (rest == Rest::none) return asked == path;
    const size_t size = std::strlen(path);
    if (!asked.starts_with(path) || asked.size() <= size) return false;
    const std::string_view behind = std::string_view(asked).substr(size);
    const size_t slash = behind.find('/');
    if (rest == Rest::input_items) return slash > 0 && behind.substr(slash + 1) == "input_items";
    return rest == Rest::name || slash == behind.npos;
  }
};

}  // namespace invar::server
