// The variables of a template while it is evaluated.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/jinja/operations.h"

namespace invar::jinja {

// The variables of a block; what is not there is looked for in the block around it.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> variables;
  std::unordered_map<std::string_view, size_t> places;  // of variables, once they are many

  void set(std::string_view name, Value value) {
    if (Value* old = own(name)) {
      *old = std::move(value);
      return;
    }
    variables.emplace_back(name, std::move(value));
    if (variables.size() <= kFew) return;
    for (size_t i = places.size(); i < variables.size(); ++i) places[variables[i].first] = i;
  }
  // Charges what it looks at.
  const Value* find(std::string_view name, Budget& budget) {
    const Value* found = nullptr;
    size_t scopes = 0;
    for (Scope* scope = this; scope && !found; scope = scope->parent.get(), ++scopes)
      found = scope->own(name);
    budget.touch(name.size());
    budget.step(static_cast<int64_t>(scopes / 4));
    return found;
  }

 private:
  static constexpr size_t kFew = 8;

  Value* own(std::string_view name) {
    if (variables.size() > kFew) {
      const auto found = places.find(name);
      return found == places.end() ? nullptr : &variables[found->second].second;
    }
    for (auto& [known, value] : variables)
      if (known == name) return &value;
    return nullptr;
  }
};
using ScopePtr = std::shared_ptr<Scope>;

}  // namespace invar::jinja
