// GET /, /docs, /openapi.json and /page/NAME: files that are part of the program. They need no key;
// what they ask of the server does.
#include "page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "api.h"
#include "base/sha256.h"

namespace invar::server {

namespace {

// The source expression by which a policy allows the style that stands within a document; nothing
// where none does.
std::string style_source(std::string_view document) {
  constexpr std::string_view kBegin = "<style>", kEnd = "</style>";
  const size_t begin = document.find(kBegin), end = document.find(kEnd, begin);
  if (begin == document.npos || end == document.npos) return {};
  const Digest digest =
      sha256(std::as_bytes(std::span(document.substr(0, end).substr(begin + kBegin.size()))));
  std::array<unsigned char, 4 * ((sizeof(Digest) + 2) / 3) + 1> text;
  EVP_EncodeBlock(text.data(), digest.data(), static_cast<int>(digest.size()));
  return fmt::format(" 'sha256-{}'", reinterpret_cast<const char*>(text.data()));
}

// Nothing from anywhere else, and no script or style but the page's own.
std::string policy_of(std::string_view document) {
  return fmt::format(
      "default-src 'none'; script-src 'self'; style-src 'self'{}; connect-src 'self'; "
      "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      style_source(document));
}

const char* type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".json")) return "application/json";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/plain; charset=utf-8";
}

// The file that stands at a path.
std::string_view name_at(std::string_view path) {
  constexpr std::string_view kFolder = "/page/";
  if (path == "/") return "index.html";
  if (path == "/docs") return "docs.html";
  return path.starts_with(kFolder) ? path.substr(kFolder.size()) : path.substr(1);
}

const PageFile* find_file(std::string_view name) {
  const auto files = page_files();
  const auto found = std::ranges::find(files, name, &PageFile::name);
  return found == files.end() ? nullptr : &*found;
}

}  // namespace

HttpReply Server::page_at(const std::string& path) {
  const PageFile* file = find_file(name_at(path));
  if (!file) throw ApiError{404, "there is nothing at " + json::quoted(path)};
  HttpReply reply{.type = type_of(file->name),
                  .headers = {{"Content-Security-Policy", policy_of(file->bytes)},
                              {"X-Content-Type-Options", "nosniff"},
                              {"Referrer-Policy", "no-referrer"},
                              // A link in an answer tells nobody its name before it is followed.
                              {"X-DNS-Prefetch-Control", "off"},
                              {"Cache-Control", "no-cache"}}};
  reply.body = file->bytes;
  return reply;
}

void Server::page(std::shared_ptr<Exchange> exchange) {
  exchange->reply(page_at(exchange->request.path));
}

}  // namespace invar::server
