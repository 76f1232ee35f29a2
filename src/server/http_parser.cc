#include "http_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace invar::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kMaxHeaders = 256;
// Before a chunk: its size and extensions that nobody reads.
constexpr size_t kMaxChunkLine = 4 << 10;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  return out;
}

Refused refusal_of(const error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return {431, "the header of the request is too large"};
  if (error == http::error::body_limit) return {413, "the body of the request is too large"};
  if (error == http::error::bad_version)
    return {505, "expected HTTP/1.1 or HTTP/1.0, found another version"};
  return {400, fmt::format("expected a request in HTTP/1.1, found {}", error.message())};
}

// Lines end with CR LF and go on on no other: what the parser forgives, another server may not.
void check_lines(std::string_view header) {
  header = header.substr(0, header.find("\r\n\r\n"));
  for (size_t at = header.find('\n'); at != header.npos; at = header.find('\n', at + 1)) {
    if (at == 0 || header[at - 1] != '\r')
      throw Refused{400, "expected lines of the header that end with CR LF, found LF alone"};
    if (at + 1 < header.size() && (header[at + 1] == ' ' || header[at + 1] == '\t'))
      throw Refused{400, "expected each header on one line, found one that is folded"};
  }
}

bool is_number(std::string_view text) {
  return text.find_first_not_of("0123456789") == text.npos;
}

// A text that grows with what has come: Beast's own reserves what a header announces.
struct GrowingBody : http::string_body {
  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, std::string& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      const size_t before = body_.size();
      for (const auto& one : boost::beast::buffers_range_ref(buffers))
        body_.append(static_cast<const char*>(one.data()), one.size());
      error = {};
      return body_.size() - before;
    }
    void finish(error_code& error) { error = {}; }

   private:
    std::string& body_;
  };
};

// Refuses headers that the parser lets through and two servers in a row could read differently.
void check_header(const http::request<GrowingBody>& message) {
  size_t count = 0, hosts = 0, lengths = 0, encodings = 0;
  for (const auto& field : message) {
    ++count;
    hosts += field.name() == http::field::host;
    lengths += field.name() == http::field::content_length;
    encodings += field.name() == http::field::transfer_encoding;
  }
  if (count > kMaxHeaders) throw Refused{431, "the request has too many headers"};
  if (message.version() == 11 && hosts != 1)
    throw Refused{400, fmt::format("expected one Host header, found {}", hosts)};
  if (lengths + encodings > 1)
    throw Refused{400, "expected one Content-Length or one Transfer-Encoding, found more"};
  if (lengths && !is_number(message[http::field::content_length]))
    throw Refused{400, "expected one number as Content-Length, found more"};
  if (encodings && lower(message[http::field::transfer_encoding]) != "chunked")
    throw Refused{501, "expected the Transfer-Encoding chunked, found another"};
  if (message.target().empty() || message.target()[0] != '/')
    throw Refused{400, "expected a path that begins with / as the target of the request"};
}

// The path of the first line, without its query; empty while that has not come.
std::string path_of(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find_first_of("\r\n"));
  const size_t begin = std::min(line.find(' '), line.size());
  const size_t end = line.find_first_of(" ?", begin + 1);
  return end == line.npos ? "" : std::string(line.substr(begin + 1, end - begin - 1));
}

HttpRequest head_of(const http::request<GrowingBody>& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target = std::string(message.target());
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  for (const auto& field : message)
    request.headers.emplace_back(lower(field.name_string()), std::string(field.value()));
  return request;
}

}  // namespace

struct RequestParser::Impl {
  http::request_parser<GrowingBody> parser;
  bool is_checked = false;
  std::string path;
  int64_t fields = 0;  // of the checked header
  size_t max_body = 0;
  size_t taken = 0, waiting = 0;  // bytes of the body: parsed, and of a line that is not whole yet

  int64_t count_fields() const { return std::distance(parser.get().begin(), parser.get().end()); }

  // A limit beside the parser's own, which counts the contents of chunks and not the framing around
  // them.
  void check_framing(size_t unread) {
    waiting = parser.is_done() ? 0 : unread;
    if (waiting > kMaxChunkLine)
      throw Refused{400, fmt::format("expected at most {} bytes in the line before a chunk, found "
                                     "more",
                                     kMaxChunkLine)};
    if (taken + waiting > max_body) throw refusal_of(http::error::body_limit);
  }
};

RequestParser::RequestParser(size_t max_header_bytes, size_t max_body_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->parser.header_limit(static_cast<uint32_t>(max_header_bytes));
  impl_->parser.body_limit(max_body_bytes);
  impl_->max_body = max_body_bytes;
  impl_->parser.eager(false);  // the header alone, to be checked
}

RequestParser::~RequestParser() = default;

bool RequestParser::put(std::string& in) {
  auto& parser = impl_->parser;
  if (impl_->path.empty()) impl_->path = path_of(in);
  while (true) {
    error_code error;
    const size_t used = parser.put(asio::buffer(in), error);
    const bool failed = error && error != http::error::need_more;
    // The parser takes a header as a whole.
    if (!impl_->is_checked && (failed || parser.is_header_done())) check_lines(in);
    in.erase(0, used);
    if (impl_->is_checked) impl_->taken += used;
    if (failed) throw refusal_of(error);
    if (parser.is_header_done() && !impl_->is_checked) {
      check_header(parser.get());
      impl_->is_checked = true;
      impl_->fields = impl_->count_fields();
      parser.eager(true);
    }
    // The parser would add them to the header, behind what was checked.
    if (impl_->is_checked && impl_->count_fields() != impl_->fields)
      throw Refused{400, "expected a chunked body that ends without fields, found a trailer"};
    const bool waits = used == 0 || in.empty() || error;
    if (impl_->is_checked && waits) impl_->check_framing(in.size());
    if (parser.is_done()) return true;
    if (waits) return false;
  }
}

bool RequestParser::has_header() const {
  return impl_->is_checked;
}

std::string RequestParser::path() const {
  return impl_->path;
}

HttpRequest RequestParser::head() const {
  return head_of(impl_->parser.get());
}

void RequestParser::limit_body(size_t most) {
  impl_->max_body = std::min(impl_->max_body, most);
  if (announced().value_or(0) > impl_->max_body)
    throw Refused{413, fmt::format("expected a body of at most {} bytes, found one of {}",
                                   impl_->max_body, *announced())};
}

std::optional<size_t> RequestParser::announced() const {
  const auto length = impl_->parser.content_length();
  return length ? std::optional(static_cast<size_t>(*length)) : std::nullopt;
}

size_t RequestParser::body_bytes() const {
  return impl_->taken + impl_->waiting;
}

bool RequestParser::wants_continue() const {
  return has_header() && impl_->parser.get()[http::field::expect] == "100-continue";
}

bool RequestParser::keep_alive() const {
  return impl_->parser.get().keep_alive();
}

bool RequestParser::is_http_10() const {
  return impl_->parser.get().version() == 10;
}

HttpRequest RequestParser::take() {
  auto message = impl_->parser.release();
  HttpRequest request = head_of(message);
  request.body = std::move(message.body());
  return request;
}

}  // namespace invar::server
