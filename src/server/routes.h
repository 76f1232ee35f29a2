// What stands at a path.
#pragma once

#include <cstring>

#include "api.h"

namespace invar::server {

struct Server::Route {
  const char* method;
  const char* path;
  Endpoint endpoint;
  Keys::Need key = Keys::Need::client;
  // The path goes on: with the id of an answer, or with a name that may have slashes.
  enum class Rest { none, id, name } rest = Rest::none;

  bool matches(const std::string& asked) const {
    if (rest == Rest::none) return asked == path;
    const size_t size = std::strlen(path);
    return asked.starts_with(path) && asked.size() > size &&
           (rest == Rest::name || asked.find('/', size) == asked.npos);
  }
};

}  // namespace invar::server
