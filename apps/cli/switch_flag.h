// A flag that may be left to the engine.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

namespace invar::cli {

// --NAME and --no-NAME; where neither is given `value` stays empty. (To an optional bool CLI11's
// own flag gives false then.)
inline CLI::Option* add_switch(CLI::App& command, const std::string& name,
                               std::optional<bool>& value, const std::string& help) {
  const auto set = [&value](int64_t count) { value = count > 0; };
  return command.add_flag_function("--" + name + ",!--no-" + name, set, help);
}

}  // namespace invar::cli
