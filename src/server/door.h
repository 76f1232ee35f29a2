// The bounds of a route's requests: a Route without a door does not compile. docs/limits.md has
// the same words (tests/server/routes_test.cc).
#pragma once

#include <string>

namespace invar::server {

struct Door {
  enum class Body {
    small,   // kSmall bytes
    tokens,  // a few times what the context takes: Admission::most_counted_bytes
    whole,   // HttpOptions::max_body_bytes
  };
  static constexpr size_t kSmall = 64 << 10;

  const char* name;
  Body body;
  // On the serving thread, beside which nobody is served; else on the pool.
  bool read_while_serving;
  bool takes_slots;    // of AdmissionSlots: else what it costs does not grow with what is asked
  const char* place;   // that its requests have among those of others
  const char* memory;  // what they hold, and how that is counted
};

// A route and its door, with which words it is asked.
struct DoorRow {
  std::string method, path;
  const Door& door;
};

}  // namespace invar::server
