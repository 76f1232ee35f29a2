// Flags of vLLM's server that Invar does not have, and why: a user who moves over reads a reason
// and not "unknown option".
#pragma once

#include <CLI/CLI.hpp>

namespace invar::cli {

// Lets `command` end with the reason, as a usage error, for each such flag.
void refuse_foreign_flags(CLI::App& command);

}  // namespace invar::cli
