// Checks the origins of web pages that ask. Without keys, a server that any page could ask would do
// for the page what only the user of the browser may.
#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "api.h"
#include "errors.h"

namespace invar::server {

namespace {

// "example.com:8000" without its port; of "[::1]:8000" the address in the brackets.
std::string_view name_of(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

bool is_address(const std::string& name) {
  in6_addr address;
  return ::inet_pton(AF_INET, name.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), &address) == 1;
}

std::string name_of_machine() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Whether no stranger can give the name to this machine's address: names without a dot are no names
// of the internet.
bool is_own_name(std::string_view host, const std::vector<std::string>& allowed) {
  std::string name(name_of(host));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.find('.') == name.npos || is_address(name) || name.ends_with(".localhost") ||
         name == name_of_machine() ||
         std::ranges::any_of(allowed, [&](const std::string& one) { return names(one, name); });
}

}  // namespace

void Server::check_page(const HttpRequest& request) const {
  if (!options_.keys.client.empty()) return;
  const std::string* host = request.header("host");
  if (host && !is_own_name(*host, options_.allowed_hosts))
    throw ApiError{403,
                   fmt::format("expected an address, a name of this machine or one of "
                               "--allowed-hosts (names, or patterns such as *.internal) as Host, "
                               "since the server has no --api-key, found {}",
                               json::quoted(*host)),
                   "host_not_allowed"};
  const std::string* origin = request.header("origin");
  if (!origin || !allowed_origin(request).empty()) return;
  const size_t scheme = origin->find("://");
  const bool is_own = host && scheme != origin->npos && origin->substr(scheme + 3) == *host;
  if (!is_own)
    throw ApiError{403,
                   fmt::format("expected a page of the server or of --allowed-origins, since it "
                               "has no --api-key, found one of {}",
                               json::quoted(*origin)),
                   "origin_not_allowed"};
}

Headers Server::allowed_origin(const HttpRequest& request) const {
  const std::string* origin = request.header("origin");
  if (!origin) return {};
  for (const std::string& allowed : options_.allowed_origins) {
    if (allowed != "*" && allowed != *origin) continue;
    Headers headers = {{"Access-Control-Allow-Origin", allowed},
                       {"Access-Control-Expose-Headers", "*"}};
    if (allowed != "*") headers.emplace_back("Vary", "Origin");
    return headers;
  }
  return {};
}

}  // namespace invar::server
