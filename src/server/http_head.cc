#include "http_head.h"

#include <fmt/format.h>

#include <boost/beast/http/status.hpp>

namespace invar::server {

std::string bytes_of_head(const HttpReply& reply, const Headers& more, const HeadForm& form) {
  namespace http = boost::beast::http;
  const auto reason = http::obsolete_reason(http::int_to_status(reply.status));
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", reply.status,
                                 std::string_view(reason.data(), reason.size()));
  const bool has_body = reply.status != 204;
  if (has_body) head += fmt::format("Content-Type: {}\r\n", reply.type);
  for (const Headers* headers : {&reply.headers, &more})
    for (const auto& [name, value] : *headers) head += fmt::format("{}: {}\r\n", name, value);
  if (form.whole && has_body)
    head += fmt::format("Content-Length: {}\r\n", reply.body.size());
  else if (has_body && !form.is_http_10)
    head += "Transfer-Encoding: chunked\r\n";
  if (form.closes)
    head += "Connection: close\r\n";
  else if (form.is_http_10)
    head += "Connection: keep-alive\r\n";
  return head + "\r\n";
}

}  // namespace invar::server
