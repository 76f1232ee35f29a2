// Forms of several parts (RFC 7578), as files are sent.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace invar::server {

struct FormPart {
  std::string name, file_name;
  std::string_view content;  // of the body
};

// Throws UsageError for a body that is no such form. `content_type`: the header, which says what
// stands between the parts.
std::vector<FormPart> form_parts(std::string_view content_type, std::string_view body);

}  // namespace invar::server
