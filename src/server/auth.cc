#include "auth.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <strings.h>

#include <optional>
#include <span>

#include "base/sha256.h"
#include "errors.h"

namespace invar::server {

namespace {

// The key of "Authorization: Bearer KEY", the scheme in any case, or of "x-api-key: KEY" as
// Anthropic's clients send it.
std::optional<std::string_view> shown_key(const HttpRequest& request) {
  constexpr std::string_view kBearer = "Bearer ";
  if (const std::string* header = request.header("authorization")) {
    if (strncasecmp(header->c_str(), kBearer.data(), kBearer.size()) != 0) return std::nullopt;
    return std::string_view(*header).substr(kBearer.size());
  }
  if (const std::string* header = request.header("x-api-key")) return *header;
  return std::nullopt;
}

// Compares digests, so that the time says nothing about a key.
bool shows_one_of(const HttpRequest& request, const std::vector<std::string>& keys) {
  const auto shown = shown_key(request);
  if (!shown) return false;
  const Digest digest = sha256(std::as_bytes(std::span(*shown)));
  bool found = false;
  for (const std::string& key : keys) {
    const Digest expected = sha256(std::as_bytes(std::span(key)));
    found |= CRYPTO_memcmp(digest.data(), expected.data(), digest.size()) == 0;
  }
  return found;
}

}  // namespace

void Keys::check(Need need, const HttpRequest& request) const {
  if (need == Need::none || (need == Need::trainer && trusts_trainers)) return;
  const bool is_admin = need != Need::client;
  const bool has_own = is_admin && !admin.empty();
  const std::vector<std::string>& keys = has_own ? admin : client;
  // Not even on a loopback address: a page in a browser there can send a POST too.
  if (is_admin && keys.empty())
    throw ApiError{403,
                   fmt::format("{} needs a server with --admin-key or --api-key", request.path),
                   "no_api_key"};
  // One of several clients may do only what harms no other.
  if (is_admin && !has_own && keys.size() > 1)
    throw ApiError{403,
                   fmt::format("{} changes the server for all of its {} keys: it needs a server "
                               "with --admin-key",
                               request.path, keys.size()),
                   "no_admin_key"};
  if (keys.empty() || shows_one_of(request, keys)) return;
  throw ApiError{401,
                 fmt::format("expected the {} as \"Authorization: Bearer KEY\"",
                             has_own ? "admin's key" : "server's key"),
                 "invalid_api_key"};
}

bool Keys::is_admin(const HttpRequest& request) const {
  return !admin.empty() && shows_one_of(request, admin);
}

std::string Keys::owner(const HttpRequest& request) const {
  if (!request.asks_for.empty()) return request.asks_for;
  const auto shown = shown_key(request);
  if (client.empty() || !shown) return "";
  // Not the digest that a list of known keys' digests has.
  const std::string bytes = "owner of an answer of Invar\n" + std::string(*shown);
  return to_hex(sha256(std::as_bytes(std::span(bytes))));
}

}  // namespace invar::server
