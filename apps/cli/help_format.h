// How --help looks: CLI11's layout with short types, and texts wrapped to the terminal.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <vector>

namespace invar::cli {

std::shared_ptr<CLI::Formatter> help_format();

// Options that a help shows together, under a title.
struct HelpGroup {
  const char* title;
  std::vector<const char*> options;
};

// For a command with many options: --help shows these groups alone, --help-all all options.
void show_first(CLI::App& command, const std::vector<HelpGroup>& groups);

}  // namespace invar::cli
