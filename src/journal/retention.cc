#include "retention.h"

#include "base/error.h"

namespace invar::server {

using sqlite::Connection;
using sqlite::Statement;

Retention::Retention(Connection& in, Conversations& conversations, const Quota& quota)
    : conversations_(conversations),
      quota_(quota),
      oldest_(in,
              "SELECT number, id, owner, bytes FROM line WHERE outcome IS NOT NULL ORDER BY number "
              "LIMIT 1"),
      oldest_of_owner_(in,
                       "SELECT number, id, owner, bytes FROM line WHERE outcome IS NOT NULL AND "
                       "owner = ? ORDER BY number LIMIT 1"),
      old_(in,
           "SELECT number, id, owner, bytes FROM line WHERE outcome IS NOT NULL AND created < ? "
           "LIMIT 1"),
      one_(in, "SELECT number, id, owner, bytes FROM line WHERE outcome IS NOT NULL AND id = ?"),
      remove_(in, "DELETE FROM line WHERE number = ?"),
      grow_(in, "UPDATE line SET bytes = bytes + ? WHERE id = ?"),
      owner_(in, "SELECT owner FROM line WHERE id = ?") {
  Statement rows(in, "SELECT owner, SUM(bytes) FROM line GROUP BY owner");
  while (rows.step()) add(rows.bytes(0), rows.integer(1));
}

void Retention::add(const std::string& owner, int64_t bytes) {
  usage_.all += bytes;
  usage_.of_owner[owner] += bytes;
}

void Retention::grow(const std::string& id, int64_t bytes) {
  if (!owner_.reset().bind(id).step()) return;
  add(owner_.bytes(0), bytes);
  owner_.reset();
  grow_.reset().bind(bytes).bind(id).run();
}

void Retention::forget(const Statement& row) {
  const int64_t number = row.integer(0);
  const std::string id = row.bytes(1);
  add(row.bytes(2), -row.integer(3));
  remove_.reset().bind(number).run();
  conversations_.forget(id);
}

void Retention::make_room(const std::string& owner, int64_t bytes) {
  while (usage_.of_owner[owner] + bytes > quota_.of_owner) {
    if (!oldest_of_owner_.reset().bind(owner).step())
      fail(
          "journal: expected room for {} bytes of one key's requests that have not ended, found "
          "{} in use of {}",
          bytes, usage_.of_owner[owner], quota_.of_owner);
    forget(oldest_of_owner_);
  }
  while (usage_.all + bytes > quota_.all) {
    if (!oldest_.reset().step())
      fail(
          "journal: expected room for {} bytes of requests that have not ended, found {} in use "
          "of {}",
          bytes, usage_.all, quota_.all);
    forget(oldest_);
  }
  oldest_of_owner_.reset();
  oldest_.reset();
}

void Retention::forget_before(int64_t created) {
  while (old_.reset().bind(created).step()) forget(old_);
  old_.reset();
}

void Retention::forget_line(const std::string& id) {
  if (one_.reset().bind(id).step()) forget(one_);
  one_.reset();
}

}  // namespace invar::server
