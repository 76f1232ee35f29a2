// Exercises with one right answer: arithmetic worked step by step, copying, tables, small talk.
#pragma once

#include <string>

#include "train/corpus/random.h"

namespace invar::corpus {

struct Turn {
  std::string user, assistant;
};

// The last line of the answer is "The answer is N."
Turn make_arithmetic(Random& random);
// Lists, words and tables to be copied, counted, looked up or rewritten.
Turn make_copying(Random& random);
// A table to be written as JSON.
Turn make_json(Random& random);
Turn make_talk(Random& random);

}  // namespace invar::corpus
