// How --help looks: CLI11's layout with short types, and texts wrapped to the terminal.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>

namespace invar::cli {

// The one group that --help shows of a command with many options; --help-all shows all of them.
inline constexpr const char* kMostUsed = "Options that most people need";

std::shared_ptr<CLI::Formatter> help_format();

// Puts the named options into that group.
void show_first(CLI::App& command, std::initializer_list<const char*> names);

}  // namespace invar::cli
