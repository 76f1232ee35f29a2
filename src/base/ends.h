// The first and the last entry of a list that may be empty. Texts of clients, models and templates
// are translated more than once, and a list can lose its last entry on the way.
#pragma once

#include <iterator>

#include "base/error.h"

namespace invar {

// Both throw Error where the list has no entry.
template <typename List>
decltype(auto) first_of(List& list) {
  if (std::empty(list)) fail("expected a list with a first entry, found an empty one");
  return *std::begin(list);
}

template <typename List>
decltype(auto) last_of(List& list) {
  if (std::empty(list)) fail("expected a list with a last entry, found an empty one");
  return *std::prev(std::end(list));
}

}  // namespace invar
