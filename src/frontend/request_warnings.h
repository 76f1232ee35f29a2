// What a request asks for and does not get although it is answered: a sentence for each, which the
// client sees in headers of the answer. For the bodies of agents, which cannot be told what to
// send.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace invar::openai {

class RequestWarnings {
 public:
  // Each sentence once, and not too many of them.
  void add(std::string_view sentence);
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
};

}  // namespace invar::openai
