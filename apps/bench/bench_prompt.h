// Prompts of benchmarks: any tokens, the same ones every time.
#pragma once

#include <cstdint>
#include <vector>

namespace invar::cli {

inline std::vector<int32_t> bench_prompt(int64_t sequence, int64_t tokens, int64_t vocab) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < tokens; ++i)
    prompt.push_back(static_cast<int32_t>((sequence * 7919 + i * 104729 + 11) % vocab));
  return prompt;
}

}  // namespace invar::cli
