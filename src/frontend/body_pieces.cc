#include "frontend/body_pieces.h"

#include "base/check.h"

namespace invar {

namespace {

// Inside a text a quotation mark would be escaped: no text has these bytes.
std::string mark_of(size_t part) {
  return "{\"@late\": " + std::to_string(part) + "}";
}

}  // namespace

json::Value LateLists::add(std::vector<List> lists, std::string after) {
  parts_.push_back({std::move(lists), std::move(after)});
  return json::Object{{"@late", static_cast<int64_t>(parts_.size() - 1)}};
}

BodyPieces::BodyPieces(const json::Value& body, LateLists late) : late_(std::move(late)) {
  const std::string text = json::dump(body);
  between_.clear();
  size_t from = 0;
  for (size_t part = 0; part < late_.parts_.size(); ++part) {
    const std::string mark = mark_of(part);
    const size_t at = text.find(mark, from);
    CHECK(at != std::string::npos, "a list that the body does not hold in its order");
    between_.push_back(text.substr(from, at - from));
    from = at + mark.size();
  }
  between_.push_back(text.substr(from));
}

bool BodyPieces::append(std::string& out, size_t bytes) {
  const size_t enough = out.size() + bytes;
  while (out.size() < enough) {
    if (part_ == late_.parts_.size()) {
      out += between_[part_];
      return false;
    }
    LateLists::Part& part = late_.parts_[part_];
    if (list_ == 0 && element_ == 0) out += between_[part_];
    if (list_ == part.lists.size()) {
      out += part.after;
      part = {};  // with what its functions hold
      ++part_;
      list_ = 0;
      continue;
    }
    const LateLists::List& list = part.lists[list_];
    if (element_ == 0) out += list.before;
    if (element_ < list.size) {
      if (element_ > 0) out += ", ";
      list.append(element_++, out);
    }
    if (element_ == list.size) {
      ++list_;
      element_ = 0;
    }
  }
  return true;
}

}  // namespace invar
