// GET /, /docs, /openapi.json and /page/NAME: files that are part of the program. They need no key;
// what they ask of the server does.
#include "page.h"

#include <algorithm>

#include "api.h"

namespace invar::server {

namespace {

// Nothing from anywhere else, and no script but the page's own files.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

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
                  .headers = {{"Content-Security-Policy", kPolicy},
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
