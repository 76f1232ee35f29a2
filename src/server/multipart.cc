#include "multipart.h"

#include <strings.h>

#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace invar::server {

namespace {

constexpr size_t kMostParts = 64;

// The value of a parameter of a header's value: form-data; name="file"; filename="a.jsonl"
std::optional<std::string> parameter(std::string_view header, std::string_view name) {
  for (size_t at = header.find(';'); at != header.npos; at = header.find(';', at)) {
    at = header.find_first_not_of("; \t", at);
    if (at == header.npos) break;
    const size_t equals = header.find('=', at);
    if (equals == header.npos) break;
    const bool is_it = header.substr(at, equals - at) == name;
    const bool is_quoted = equals + 1 < header.size() && header[equals + 1] == '"';
    const size_t begin = equals + 1 + (is_quoted ? 1 : 0);
    const size_t end = std::min(header.find(is_quoted ? '"' : ';', begin), header.size());
    if (is_it) return std::string(header.substr(begin, end - begin));
    at = end;
  }
  return std::nullopt;
}

// The headers of a part; only one of them says something here.
FormPart part_of(std::string_view headers, std::string_view content) {
  constexpr std::string_view kDisposition = "content-disposition:";
  FormPart part{.name = {}, .file_name = {}, .content = content};
  while (!headers.empty()) {
    const size_t end = std::min(headers.find("\r\n"), headers.size());
    const std::string_view line = headers.substr(0, end);
    headers.remove_prefix(std::min(end + 2, headers.size()));
    if (line.size() < kDisposition.size() ||
        strncasecmp(line.data(), kDisposition.data(), kDisposition.size()) != 0)
      continue;
    part.name = parameter(line, "name").value_or("");
    part.file_name = parameter(line, "filename").value_or("");
  }
  return part;
}

}  // namespace

std::vector<FormPart> form_parts(std::string_view content_type, std::string_view body) {
  const auto boundary = parameter(content_type, "boundary");
  if (!content_type.starts_with("multipart/form-data") || !boundary || boundary->empty())
    fail_usage("expected a body of type multipart/form-data with a boundary, found {}",
               json::quoted(content_type));
  const std::string mark = "--" + *boundary, between = "\r\n" + mark;
  if (!body.starts_with(mark)) fail_usage("expected a form that begins with its boundary");
  body.remove_prefix(mark.size());
  std::vector<FormPart> parts;
  while (!body.starts_with("--")) {
    const size_t headers = body.find("\r\n\r\n"), end = body.find(between);
    if (!body.starts_with("\r\n") || headers == body.npos || end == body.npos ||
        parts.size() == kMostParts)
      fail_usage("expected a form of at most {} whole parts, found another body", kMostParts);
    const size_t content = headers + 4;
    if (content > end && headers + 2 != end)
      fail_usage("expected a blank line behind the headers of a part, found none");
    parts.push_back(part_of(body.substr(2, headers - 2),
                            content > end ? "" : body.substr(content, end - content)));
    body.remove_prefix(end + between.size());
  }
  return parts;
}

}  // namespace invar::server
