// Says in one sentence why a call of the program is wrong.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace invar::cli {

// `app` as it stood when its parser threw `error`.
std::string call_error(const CLI::App& app, const CLI::Error& error);

}  // namespace invar::cli
