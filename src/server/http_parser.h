// The bytes of a connection as requests, within limits. Refuses what two servers in a row could
// read differently.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "http.h"

namespace invar::server {

// A request that cannot be served: thrown; the connection ends after the reply.
struct Refused {
  int status;
  std::string sentence;
  std::string path = {};  // that the request asks for, as far as it is known
};

class RequestParser {
 public:
  // The body's bytes are those of the connection: a chunk's lines count as its contents do.
  RequestParser(size_t max_header_bytes, size_t max_body_bytes);
  ~RequestParser();

  // Takes from the front of `in` what belongs to the request. True when that is complete. How the
  // bytes are cut into calls changes nothing but when a fault in an unfinished header is seen.
  bool put(std::string& in);
  bool has_header() const;
  // The path of the first line, once that came; else empty.
  std::string path() const;
  // The request without its body, once it has its header.
  HttpRequest head() const;
  // Allows a body of so many bytes, where that is less than before. Throws Refused where more are
  // announced.
  void limit_body(size_t most);
  // Bytes of the body that its header announces; nothing when it comes in chunks.
  std::optional<size_t> announced() const;
  // Bytes of the body that came, the lines of chunks included.
  size_t body_bytes() const;
  // The client waits for a word before it sends the body.
  bool wants_continue() const;
  bool keep_alive() const;
  bool is_http_10() const;
  // After it is complete, once.
  HttpRequest take();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace invar::server
