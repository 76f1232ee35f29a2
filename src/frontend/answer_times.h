// How long the parts of an answer took: facts of a server, which some protocols show, and no part
// of an answer. An answer that is computed again shows others.
#pragma once

#include <cstdint>

namespace invar {

struct AnswerTimes {
  int64_t total_ns = 0;   // since the request came
  int64_t prompt_ns = 0;  // until the first token, from when its first row was computed
  int64_t answer_ns = 0;  // from the first token to the last
};

}  // namespace invar
