#include "request_rules.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "admission.h"
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

void check_page(const ServerOptions& options, const HttpRequest& request) {
  if (!options.keys.client.empty()) return;
  const std::string* host = request.header("host");
  if (host && !is_own_name(*host, options.allowed_hosts))
    throw ApiError{403,
                   fmt::format("expected an address, a name of this machine or one of "
                               "--allowed-hosts (names, or patterns such as *.internal) as Host, "
                               "since the server has no --api-key, found {}",
                               json::quoted(*host)),
                   "host_not_allowed"};
  const std::string* origin = request.header("origin");
  if (!origin || !allowed_origin(options, request).empty()) return;
  const size_t scheme = origin->find("://");
  const bool is_own = host && scheme != origin->npos && origin->substr(scheme + 3) == *host;
  if (!is_own)
    throw ApiError{403,
                   fmt::format("expected a page of the server or of --allowed-origins, since it "
                               "has no --api-key, found one of {}",
                               json::quoted(*origin)),
                   "origin_not_allowed"};
}

Headers allowed_origin(const ServerOptions& options, const HttpRequest& request) {
  const std::string* origin = request.header("origin");
  if (!origin) return {};
  for (const std::string& allowed : options.allowed_origins) {
    if (allowed != "*" && allowed != *origin) continue;
    Headers headers = {{"Access-Control-Allow-Origin", allowed},
                       {"Access-Control-Expose-Headers", "*"}};
    if (allowed != "*") headers.emplace_back("Vary", "Origin");
    return headers;
  }
  return {};
}

void check_front(const ServerOptions& options, const HttpRequest& request) {
  const std::string& secret = options.front_secret;
  if (secret.empty()) return;
  const std::string* shown = request.header(kFrontHeader);
  if (!shown || shown->size() != secret.size() ||
      CRYPTO_memcmp(shown->data(), secret.data(), secret.size()) != 0)
    throw ApiError{403,
                   "expected a request of the server before this one, which serves its clients"};
}

Headers headers_of(const ServerOptions& options, const HttpRequest& request) {
  constexpr size_t kLongest = 128;
  const std::string* given = request.header("x-request-id");
  const bool is_fine = given && !given->empty() && given->size() <= kLongest &&
                       std::ranges::all_of(*given, [](char c) { return c > ' ' && c < 0x7f; });
  const std::string id = is_fine ? *given : random_id("req_");
  Headers headers = allowed_origin(options, request);
  headers.emplace_back("X-Request-Id", id);
  if (request.path.starts_with("/v1/messages")) headers.emplace_back("Request-Id", id);
  return headers;
}

std::optional<std::chrono::steady_clock::duration> time_limit(const ServerOptions& options,
                                                              const HttpRequest& request) {
  auto time = std::chrono::duration<double>(options.request_timeout);
  if (const std::string* header = request.header("x-request-timeout")) {
    double seconds = 0;
    const char* end = header->data() + header->size();
    const auto read = std::from_chars(header->data(), end, seconds);
    if (read.ec != std::errc() || read.ptr != end || !(seconds > 0 && seconds <= 1e9))
      throw ApiError{400, fmt::format("expected X-Request-Timeout in seconds, above 0, found {}",
                                      json::quoted(*header))};
    if (time.count() == 0 || seconds < time.count()) time = decltype(time)(seconds);
  }
  if (time.count() == 0) return std::nullopt;
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(time);
}

}  // namespace invar::server
