// The traits of a policy by its name: the table in policies.cc has a row for each.
#pragma once

#include <string>

namespace invar {

// Whether it computes prompts whole: its steps need room for the longest one.
bool computes_whole_prompts(const std::string& policy);
// Whether its steps mix decodes with chunks of prompts, so that their rows bound the time between
// two tokens of an answer.
bool is_stall_free(const std::string& policy);

}  // namespace invar
