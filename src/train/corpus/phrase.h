// Patterns of English with choices and names to be filled in.
//
//   [a|b|c]  one of the parts, which may hold patterns themselves; a part may be empty
//   {x}      what was set as x
//   {a x}    the same with its article: "a kite", "an apple"
//
// Sentences begin with a capital letter whatever the pattern has; spaces are never doubled.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "train/corpus/random.h"

namespace invar::corpus {

class Phrases {
 public:
  explicit Phrases(Random& random) : random_(random) {}

  void set(std::string name, std::string_view value) { values_[std::move(name)] = value; }
  const std::string& get(const std::string& name) const;
  // Whole sentences.
  std::string operator()(std::string_view pattern) const;
  // A part of one: as it is written.
  std::string fragment(std::string_view pattern) const;

 private:
  void expand(std::string_view pattern, std::string& out) const;

  Random& random_;
  std::map<std::string, std::string> values_;
};

std::string with_article(std::string_view noun);
std::string plural(std::string_view noun);
std::string capitalized(std::string text);

}  // namespace invar::corpus
