// Stories: a hero, a friend and what happens to them, once or several times, and questions about
// it.
#pragma once

#include <string>
#include <vector>

#include "train/corpus/random.h"

namespace invar::corpus {

struct Question {
  std::string question, answer;
};

struct Story {
  std::string hero, hero_kind;  // "Mia", "girl"
  std::string about;            // "a lost ball": the first episode
  std::string text;
  std::vector<Question> questions;  // whose answers the text gives
};

// A story of up to `most_episodes` episodes (1 or 2).
Story make_story(Random& random, int most_episodes);

}  // namespace invar::corpus
