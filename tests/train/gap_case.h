// What trainers learn from and samplers are asked, where the two are compared.
#pragma once

#include <vector>

#include "train/packed_row.h"
#include "train/rl/rollouts.h"

namespace invar::rl {

inline constexpr int kContext = 64;  // of a row and of a request

inline std::vector<Question> questions(int count) {
  std::vector<Question> questions;
  for (int i = 0; i < count; ++i) {
    Question question{.seed = static_cast<uint64_t>(i)};
    for (int t = 0; t < 5 + i % 23; ++t) question.prompt.push_back((i * 31 + t * t * 7) % 500);
    questions.push_back(std::move(question));
  }
  return questions;
}

// Rows to learn from: any will do.
inline std::vector<PackedRow> rows_of_step(int step) {
  std::vector<PackedRow> rows;
  for (int row = 0; row < 4; ++row) {
    PackedRow one{.begins = {0}};
    for (int t = 0; t < kContext; ++t) {
      one.tokens.push_back((step * 13 + row * 7 + t * 3) % 500);
      one.targets.push_back((step * 13 + row * 7 + t * 3 + 3) % 500);
      one.weights.push_back(1);
    }
    rows.push_back(std::move(one));
  }
  return rows;
}

}  // namespace invar::rl
