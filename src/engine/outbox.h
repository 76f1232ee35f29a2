// The events of a step for its sink, in the order in which it is told.
#pragma once

#include <vector>

#include "engine/request.h"

namespace invar {

struct Outbox {
  std::vector<PromptOutput> prompts;
  std::vector<TokenOutput> tokens;
  std::vector<PooledOutput> pooled;

  void clear() {
    prompts.clear();
    tokens.clear();
    pooled.clear();
  }
};

}  // namespace invar
