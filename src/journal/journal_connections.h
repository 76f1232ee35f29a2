// The connections of a journal to its file, and what of the file each knows.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "journal.h"
#include "line_mark.h"
#include "sqlite.h"

namespace invar::server {

// Damage stops the start unless it is accepted: a server that went on without a word would answer
// an idempotency key that it has forgotten with another answer.
void report_damage(const std::string& damage, const JournalOptions& options);
// The damage that SQLite finds in the file, or nothing.
std::string wrong_pages(sqlite::Connection& in);

// The thread that writes has one connection, the one that copies the log another, readers a third.
struct Journal::Connections {
  // Opens the file, or makes it. Throws Error for what is none of a journal.
  Connections(const std::string& path, const JournalOptions& options);

  sqlite::Connection writer, checkpointer;
  mutable std::mutex reading;
  sqlite::Connection reader;
  LineMark mark;
  int64_t last_line = 0;  // its number
  std::optional<sqlite::Statement> insert, update, settle, settled;
  std::optional<Conversations> conversations;
  std::optional<Retention> retention;

 private:
  void prepare(const std::string& path, const JournalOptions& options);
};

}  // namespace invar::server
