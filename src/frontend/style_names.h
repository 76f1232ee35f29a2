// The names of the formats that a flag chooses among, for its help and its refusal.
#pragma once

#include <span>
#include <string>

namespace invar {

template <typename Style>
std::string names_of(std::span<const Style> styles) {
  std::string names;
  for (const Style& style : styles) names += (names.empty() ? "" : ", ") + std::string(style.name);
  return names;
}

}  // namespace invar
