// Checks who may ask, and whose an answer is.
#pragma once

#include <string>
#include <vector>

#include "http.h"

namespace invar::server {

struct Keys {
  std::vector<std::string> client;  // empty: anyone may ask
  // For what changes the server for everybody. Empty: the only key of clients, and nobody where
  // there are several or none.
  std::vector<std::string> admin;
  // Whether RL stacks, some of which show no key, need none for what an admin may.
  bool trusts_trainers = false;

  enum class Need { none, client, admin, trainer };  // the last: an admin, or as said above
  // Throws ApiError when the request does not show a key that `need` asks for.
  void check(Need need, const HttpRequest& request) const;
  // Whether the key that it shows is one of admins, where these have their own.
  bool is_admin(const HttpRequest& request) const;
  // The owner of the answers that the request asks for, as the journal has it: a digest of the key
  // that it shows; empty where no key is needed.
  std::string owner(const HttpRequest& request) const;
};

}  // namespace invar::server
