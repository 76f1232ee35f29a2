// The parameters of a request's query.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>

namespace invar::server {

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
