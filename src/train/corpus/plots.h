// What can happen in a story: texts with choices (phrase.h) and the questions they answer. Every
// name in braces is set by story.cc; what a question asks is always a name, never a choice.
#pragma once

#include <cstddef>

namespace invar::corpus {

struct QuestionPattern {
  const char* question;
  const char* answer;
};

struct Plot {
  const char* about;  // completes "a story about"
  const char* text;   // of {hero} and {friend}, who are known already
  QuestionPattern questions[4];
};

extern const Plot kPlots[];
extern const size_t kPlotCount;

}  // namespace invar::corpus
