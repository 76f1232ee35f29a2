// The items of responses, for later ones that go on from them. Each has its own part and the id of
// the one before it: a conversation is stored once, however many go on from it.
#pragma once

#include <optional>
#include <string>

#include "sqlite.h"

namespace invar::server {

// A response's own input and output, beside what came before, as JSON lists of items.
struct Said {
  std::string previous;  // the id of the response that it goes on from; empty: none
  std::string input;
};

class Conversations {
 public:
  explicit Conversations(sqlite::Connection& in);

  void begin(const std::string& id, const Said& said);
  // The response has ended well: later ones may go on from it. False: it never began, or ended
  // before.
  bool end(const std::string& id, const std::string& output);
  // Its line is gone: its part too, unless another one goes on from it; then with that one.
  void forget(const std::string& id);

 private:
  bool goes_on(const std::string& id);

  sqlite::Statement begin_, end_, previous_, remove_, is_needed_;
};

// Nothing: no such response is kept.
struct Conversation {
  bool has_ended = false;  // well, all the way
  std::string items;       // a JSON list
};
std::optional<Conversation> find_conversation(const sqlite::Connection& in, const std::string& id);
// Bytes of its items, without reading them.
int64_t conversation_bytes(const sqlite::Connection& in, const std::string& id);

}  // namespace invar::server
