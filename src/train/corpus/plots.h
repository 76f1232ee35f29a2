// The events of a story: texts with choices (phrase.h) and the questions they answer. story.cc sets
// every name in braces; a question always asks for a name, never for a choice.
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
