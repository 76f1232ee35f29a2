// The settings that /set changes in a conversation, and the file that keeps a conversation.
#pragma once

#include <string>

#include "base/json.h"
#include "sampling/params.h"

namespace invar::cli {

// "temperature 0.8", a line each.
std::string shown_settings(const SamplingParams& params);
// Throws UsageError for a name that is none, or a value that it cannot have.
void change_setting(SamplingParams& params, const std::string& name, const std::string& value);

// {"messages": [...]} in a file. Throw Error.
void save_conversation(const std::string& path, const json::Array& messages);
json::Array load_conversation(const std::string& path);

}  // namespace invar::cli
