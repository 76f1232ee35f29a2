// Jinja's grammar, as far as chat templates use it: no inheritance, no imports.
#pragma once

#include <string_view>

#include "frontend/jinja/ast.h"

namespace invar::jinja {

// Throws Fault with its line.
Block parse_template(std::string_view source);

}  // namespace invar::jinja
