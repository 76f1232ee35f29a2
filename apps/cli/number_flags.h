// Numbers on the command line, as people write them.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>

namespace invar::cli {

// Every option of `app` and its subcommands that takes a number takes decimal numbers only: by
// itself CLI11 reads an empty text as 0, 010 as 8, and what is too large as the largest number, and
// finds nan within every range.
void check_numbers(CLI::App& app);

// For an option whose integer is `low` or more.
CLI::Validator at_least(int64_t low);

}  // namespace invar::cli
