// How --help looks: CLI11's layout with short types, and texts wrapped to the terminal.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>

namespace invar::cli {

std::shared_ptr<CLI::Formatter> help_format();

}  // namespace invar::cli
