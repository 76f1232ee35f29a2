// Lines of the journal as rows of SQLite: the schema, its versions, reading and writing.
#pragma once

#include <string>
#include <vector>

#include "journal.h"
#include "sqlite.h"

namespace invar::server {

// Makes the tables of a new file, or brings those of an older version up to date, in one
// transaction. Throws Error for a file that is no journal or of a later version.
void prepare_schema(sqlite::Connection& to, const std::string& path);

inline constexpr const char* kInsertLine =
    "INSERT INTO line(id, created, owner, idempotency_key, endpoint, bytes, body, arithmetic, "
    "weights, digest, params, prompts, request) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
// Runs kInsertLine: a line that has not ended, with the next number. `bytes`: what it takes.
void insert_line(sqlite::Statement& insert, const JournalEntry& entry, int64_t bytes);
// About the bytes of the file that the entry takes.
int64_t bytes_of(const JournalEntry& entry);

// A line's number of cached tokens, the first that is written; and which that is.
inline constexpr const char* kSettleCached =
    "INSERT OR IGNORE INTO cached(line, tokens) SELECT number, ? FROM line WHERE id = ?";
inline constexpr const char* kSelectCached =
    "SELECT tokens FROM cached, line WHERE cached.line = line.number AND line.id = ?";

inline constexpr const char* kSelectLines =
    "SELECT number, id, created, owner, idempotency_key, endpoint, outcome, body, arithmetic, "
    "weights, digest, params, prompts, request, "
    "(SELECT tokens FROM cached WHERE cached.line = line.number) FROM line ";
// Reads a row of kSelectLines. Throws Error for one whose bytes are not those that were written.
JournalLine read_line(const sqlite::Statement& row);

// The table of adapters.
void keep_adapter(sqlite::Connection& to, const KeptAdapter& adapter);
void forget_adapter(const sqlite::Connection& to, const std::string& name);
std::vector<KeptAdapter> read_adapters(const sqlite::Connection& in);  // ascending by name

// Looks at every line: empty, or a sentence that names those whose bytes were changed.
std::string changed_lines(const sqlite::Connection& in);

}  // namespace invar::server
