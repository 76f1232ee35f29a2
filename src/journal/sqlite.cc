#include "sqlite.h"

namespace invar::sqlite {

Connection::Connection(const std::string& path) : path_(path) {
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  db_.reset(db);
  if (code != SQLITE_OK) fail(code);
  sqlite3_extended_result_codes(db, 1);
  sqlite3_busy_timeout(db, 10'000);
}

void Connection::fail(int code) const {
  throw SqliteError(
      code, fmt::format("{}: {}", path_, db_ ? sqlite3_errmsg(db_.get()) : sqlite3_errstr(code)));
}

void Connection::execute(const char* sql) {
  const int code = sqlite3_exec(db_.get(), sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(code);
}

int64_t Connection::query_integer(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string Connection::query_text(const char* sql) {
  Statement statement(*this, sql);
  return statement.step() ? statement.bytes(0) : "";
}

Statement::Statement(const Connection& connection, const char* sql) : connection_(connection) {
  sqlite3_stmt* statement = nullptr;
  const int code =
      sqlite3_prepare_v3(connection.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  statement_.reset(statement);
  if (code != SQLITE_OK) connection.fail(code);
}

Statement& Statement::check(int code) {
  if (code != SQLITE_OK) connection_.fail(code);
  return *this;
}

Statement& Statement::reset() {
  sqlite3_reset(statement_.get());  // says again what step said
  sqlite3_clear_bindings(statement_.get());
  bound_ = 0;
  return *this;
}

Statement& Statement::bind(int64_t value) {
  return check(sqlite3_bind_int64(statement_.get(), ++bound_, value));
}

Statement& Statement::bind(std::string_view text) {
  return check(sqlite3_bind_text64(statement_.get(), ++bound_, text.data(), text.size(),
                                   SQLITE_TRANSIENT, SQLITE_UTF8));
}

Statement& Statement::bind_blob(std::string_view bytes) {
  // A null pointer would bind NULL, which an empty blob is not.
  const char* data = bytes.empty() ? "" : bytes.data();
  return check(
      sqlite3_bind_blob64(statement_.get(), ++bound_, data, bytes.size(), SQLITE_TRANSIENT));
}

Statement& Statement::bind_null() {
  return check(sqlite3_bind_null(statement_.get(), ++bound_));
}

bool Statement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  try {
    connection_.fail(code);
  } catch (...) {
    sqlite3_reset(statement_.get());  // after the message was read: a failed statement holds locks
    throw;
  }
}

bool Statement::is_null(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}

std::string_view Statement::view(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return data ? std::string_view(static_cast<const char*>(data), static_cast<size_t>(size)) : "";
}

}  // namespace invar::sqlite
