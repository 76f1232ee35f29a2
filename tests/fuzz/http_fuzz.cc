// Any bytes as a connection's requests: a refusal or a request, the same however the bytes are cut
// into pieces; a request's body as JSON: an Error or a value that prints and parses to itself.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "base/json.h"
#include "server/http_parser.h"

using namespace invar;
using namespace invar::server;

// What comes of the first request, as one text. Its header is made to end: before that a fault may
// be seen sooner or later, as the bytes come.
static std::string outcome(const std::string& bytes, size_t piece) {
  RequestParser parser(8 << 10, 64 << 10);
  try {
    std::string in;
    for (size_t begin = 0; begin < bytes.size(); begin += piece) {
      in.append(bytes, begin, piece);
      if (!parser.put(in)) continue;
      const HttpRequest request = parser.take();
      std::string text = request.method + ' ' + request.path + '?' + request.query + '\n';
      for (const auto& [name, value] : request.headers) text += name + ": " + value + '\n';
      return text + request.body;
    }
  } catch (const Refused& refused) {
    return "refused";
  }
  return "incomplete";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string ended = std::string(bytes) + "\r\n\r\n";
  const std::string whole = outcome(ended, ended.size());
  const std::string pieces = outcome(ended, 1 + size % 7);
  CHECK(whole == pieces, "a request does not depend on how its bytes arrive");
  try {
    const json::Value value = json::parse(bytes, "fuzz", {.max_bytes = 1 << 16});
    const std::string printed = json::dump(value);
    CHECK(json::dump(json::parse(printed, "again")) == printed, "JSON parses back to itself");
  } catch (const Error&) {
  }
  return 0;
}
