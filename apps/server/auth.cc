#include "auth.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <optional>
#include <span>

#include "base/sha256.h"
#include "errors.h"

namespace invar::server {

namespace {

// What stands behind "Bearer ", if anything does.
std::optional<std::string_view> shown_key(const HttpRequest& request) {
  constexpr std::string_view kBearer = "Bearer ";
  const std::string* header = request.header("authorization");
  if (!header || !header->starts_with(kBearer)) return std::nullopt;
  return std::string_view(*header).substr(kBearer.size());
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
  if (need == Need::none) return;
  const bool is_admin = need == Need::admin;
  const bool has_own = is_admin && !admin.empty();
  const std::vector<std::string>& keys = has_own ? admin : client;
  // Not even on a loopback address: a page in a browser there can send a POST too.
  if (is_admin && keys.empty())
    throw ApiError{403,
                   fmt::format("{} needs a server with --admin-key or --api-key", request.path),
                   "no_api_key"};
  if (keys.empty() || shows_one_of(request, keys)) return;
  throw ApiError{401,
                 fmt::format("expected the {} as \"Authorization: Bearer KEY\"",
                             has_own ? "admin's key" : "server's key"),
                 "invalid_api_key"};
}

}  // namespace invar::server
