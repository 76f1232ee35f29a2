// Sampling options whose default is the model's own.
#pragma once

#include <CLI/CLI.hpp>

#include <set>
#include <string>
#include <string_view>

#include "engine/model.h"
#include "sampling/params.h"

namespace invar::cli {

// The flag of a field of requests: "--top-k" of "top_k".
std::string flag_of(std::string_view field);
// The options of `command` that the user named.
std::set<std::string> named_options(const CLI::App& command);

// `params` with the model's sampling defaults (session/open.h) where the user named nothing, as the
// server has it.
SamplingParams with_model_sampling(SamplingParams params, const std::set<std::string>& named,
                                   const ModelOptions& model);

}  // namespace invar::cli
