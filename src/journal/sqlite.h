// The little of SQLite that the journal needs, with errors as sentences.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace invar::sqlite {

// An error of SQLite, with its code: the caller may want to know whether the disk is full.
class SqliteError : public Error {
 public:
  SqliteError(int code, const std::string& text) : Error(text), code_(code & 0xff) {}
  // A value that has to be unique is there already.
  bool is_duplicate() const { return code_ == SQLITE_CONSTRAINT; }

 private:
  int code_;
};

// A connection. One thread at a time.
class Connection {
 public:
  // Opens or creates the file; throws SqliteError, as does everything below.
  explicit Connection(const std::string& path);

  void execute(const char* sql);
  int64_t query_integer(const char* sql);
  std::string query_text(const char* sql);
  // Rows that the last INSERT, UPDATE or DELETE changed.
  int changes() const { return sqlite3_changes(db_.get()); }
  bool in_transaction() const { return sqlite3_get_autocommit(db_.get()) == 0; }
  sqlite3* get() const { return db_.get(); }
  [[noreturn]] void fail(int code) const;

 private:
  struct Close {
    void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
  };
  std::string path_;
  std::unique_ptr<sqlite3, Close> db_;
};

// A prepared statement: bind 1, 2, ..., then step for each row. Parameters count from 1 and columns
// from 0, as in SQLite.
class Statement {
 public:
  Statement(const Connection& connection, const char* sql);

  const Connection& connection() const { return connection_; }
  Statement& reset();
  Statement& bind(int64_t value);
  Statement& bind(std::string_view text);
  Statement& bind_blob(std::string_view bytes);
  Statement& bind_null();
  // False when there is no (further) row.
  bool step();
  void run() {
    while (step()) {
    }
  }

  bool is_null(int column) const;
  int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  // The bytes of a text or a blob.
  std::string bytes(int column) const { return std::string(view(column)); }
  // The same until the next step.
  std::string_view view(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  Statement& check(int code);

  const Connection& connection_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int bound_ = 0;
};

}  // namespace invar::sqlite
