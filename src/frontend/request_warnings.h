// Warnings of a request: it is answered without something that it asks for. The client sees a
// sentence for each in headers of the answer. They are for the bodies of agents, which cannot be
// told what to send.
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
