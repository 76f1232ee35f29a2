// How --help looks: CLI11's layout with short types, and texts wrapped to the terminal.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>

namespace invar::cli {

// The group of options that --help shows of a command that has many, and --help-all all of them.
inline constexpr const char* kMostUsed = "Options that most people need";

std::shared_ptr<CLI::Formatter> help_format();

// Puts the named options into that group.
void show_first(CLI::App& command, std::initializer_list<const char*> names);

}  // namespace invar::cli
