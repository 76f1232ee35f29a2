// The text of a JSON body in pieces: lists that may be long are written when they are sent, so that
// neither their values nor their text are ever in memory as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"

namespace invar {

// Lists that are left out of a body's value and written later.
class LateLists {
 public:
  // Appends element i; called once for each, in order.
  using Append = std::function<void(size_t i, std::string& out)>;
  struct List {
    std::string before;  // "[", or what else stands before the first element
    size_t size = 0;
    Append append;
  };

  // Stands in the body's value for the lists and `after`, which follows the last element.
  json::Value add(std::vector<List> lists, std::string after);

 private:
  friend class BodyPieces;
  struct Part {
    std::vector<List> lists;
    std::string after;
  };
  std::vector<Part> parts_;
};

class BodyPieces {
 public:
  BodyPieces() = default;
  // `body` holds each of `late` once. The lists' functions hold what they need.
  BodyPieces(const json::Value& body, LateLists late);

  // Appends about `bytes` more. False: this was all.
  bool append(std::string& out, size_t bytes);

 private:
  LateLists late_;
  std::vector<std::string> between_ = {""};   // texts around the parts: one more than these
  size_t part_ = 0, list_ = 0, element_ = 0;  // that come next
};

}  // namespace invar
