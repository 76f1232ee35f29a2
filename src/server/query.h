// The parameters of a request's query.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace invar::server {

// A path's segments as they were before a client escaped them: "org%2Fname" is "org/name".
inline std::string unescaped(std::string_view path) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87 : -1;
  };
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool escapes =
        path[i] == '%' && i + 2 < path.size() && digit(path[i + 1]) >= 0 && digit(path[i + 2]) >= 0;
    text += escapes ? static_cast<char>(digit(path[i + 1]) * 16 + digit(path[i + 2])) : path[i];
    if (escapes) i += 2;
  }
  return text;
}

// The value of a query's parameter, or nothing. No value here needs percent-encoding.
inline std::optional<std::string_view> query_parameter(std::string_view query,
                                                       std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view one = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (one.starts_with(name) && one.size() > name.size() && one[name.size()] == '=')
      return one.substr(name.size() + 1);
  }
  return std::nullopt;
}

}  // namespace invar::server
