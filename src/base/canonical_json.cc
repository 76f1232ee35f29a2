#include "base/canonical_json.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace invar::json {

namespace {

void append_canonical(std::string& out, const Value& value) {
  if (value.is_array()) {
    out += '[';
    for (const Value& one : value.as_array()) {
      if (&one != value.as_array().data()) out += ',';
      append_canonical(out, one);
    }
    out += ']';
  } else if (value.is_object()) {
    std::vector<const Member*> members;
    for (const Member& member : value.as_object()) members.push_back(&member);
    std::ranges::sort(members, {}, [](const Member* member) { return member->first; });
    out += '{';
    for (const Member* member : members) {
      if (member != members.front()) out += ',';
      append_quoted(out, member->first);
      out += ':';
      append_canonical(out, member->second);
    }
    out += '}';
  } else {
    CHECK(!value.is_number() || (value.is_integer() && std::abs(value.as_integer()) <= 1LL << 53),
          "a canonical number is an integer up to 2^53");
    append(out, value);
  }
}

}  // namespace

std::string canonical(const Value& value) {
  std::string out;
  append_canonical(out, value);
  return out;
}

Digest digest_of(const Value& value) {
  const std::string text = canonical(value);
  return sha256(std::as_bytes(std::span(text)));
}

}  // namespace invar::json
