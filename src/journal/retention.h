// How much a journal keeps: a quota for each owner and one for all. Room for a new line comes from
// the oldest lines that have ended.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "conversations.h"
#include "sqlite.h"

namespace invar::server {

struct Quota {
  int64_t all = INT64_MAX, of_owner = INT64_MAX;  // bytes
};

class Retention {
 public:
  Retention(sqlite::Connection& in, Conversations& conversations, const Quota& quota);

  // Room for a line of so many bytes. Throws Error when what has not ended leaves none.
  void make_room(const std::string& owner, int64_t bytes);
  void add(const std::string& owner, int64_t bytes);
  // The line takes more.
  void grow(const std::string& id, int64_t bytes);
  // Forgets lines that have ended and were created before this second.
  void forget_before(int64_t created);
  // Forgets one line that has ended.
  void forget_line(const std::string& id);

  struct Usage {
    int64_t all = 0;
    std::unordered_map<std::string, int64_t> of_owner;
  };
  // Reads the usage. After a transaction that was taken back it is the usage from before.
  const Usage& usage() const { return usage_; }
  void set_usage(Usage usage) { usage_ = std::move(usage); }

 private:
  // The line of a row with number, id, owner, bytes.
  void forget(const sqlite::Statement& row);

  Conversations& conversations_;
  const Quota quota_;
  Usage usage_;
  sqlite::Statement oldest_, oldest_of_owner_, old_, one_, remove_, grow_, owner_;
};

}  // namespace invar::server
