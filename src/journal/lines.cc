#include "lines.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "wire.h"

namespace invar::server {

namespace {

using sqlite::Connection;
using sqlite::Statement;

constexpr int64_t kApplication = 0x494e564a;  // "INVJ"
constexpr int64_t kVersion = 2;               // 1 had neither owner nor digest

constexpr const char* kSchema = R"(
CREATE TABLE line(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  created INTEGER NOT NULL,
  owner TEXT NOT NULL,
  idempotency_key TEXT,
  endpoint TEXT NOT NULL,
  request TEXT NOT NULL,
  prompts BLOB NOT NULL,
  params BLOB NOT NULL,
  arithmetic TEXT NOT NULL,
  weights BLOB NOT NULL,  -- JournalEntry::model
  digest BLOB NOT NULL,
  outcome INTEGER,
  UNIQUE(owner, idempotency_key));
CREATE INDEX line_unfinished ON line(number) WHERE outcome IS NULL;
)";
// A line of version 1 in the columns of kSelectLines; it has no digest that could be wrong.
constexpr const char* kSelectLinesOf1 =
    "SELECT number, id, created, 'unknown', idempotency_key, endpoint, request, prompts, params, "
    "arithmetic, weights, NULL, outcome FROM line_of_1 ORDER BY number";

std::string bytes_of(const std::vector<std::vector<int32_t>>& prompts) {
  ByteWriter out;
  out.put(static_cast<uint64_t>(prompts.size()));
  for (const auto& prompt : prompts) out.put_vector(prompt);
  return out.take();
}

std::vector<std::vector<int32_t>> prompts_of(const std::string& bytes) {
  ByteReader in(bytes, "a journal's prompts");
  std::vector<std::vector<int32_t>> prompts(in.get_count(sizeof(uint64_t)));
  for (auto& prompt : prompts) prompt = in.get_vector<int32_t>();
  in.expect_end();
  return prompts;
}

std::string bytes_of(const SamplingParams& params) {
  ByteWriter out;
  put_params(out, params);
  return out.take();
}

SamplingParams params_of(const std::string& bytes) {
  ByteReader in(bytes, "a journal's sampling parameters");
  const SamplingParams params = get_params(in);
  in.expect_end();
  return params;
}

std::string bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// Of all that an answer's bytes depend on, as columns hold it.
Digest digest_of(const JournalEntry& e, const std::string& prompts, const std::string& params) {
  ByteWriter out;
  out.put(e.created);
  const std::string model = bytes_of(e.model);
  for (const std::string* text : {&e.id, &e.owner, &e.idempotency_key, &e.endpoint, &e.request,
                                  &prompts, &params, &e.arithmetic, &model})
    out.put_text(*text);
  const std::string bytes = out.take();
  return sha256(std::as_bytes(std::span(bytes)));
}

void check_digest(const Statement& row, const JournalEntry& entry) {
  if (row.is_null(11)) return;
  if (row.bytes(11) != bytes_of(digest_of(entry, row.bytes(7), row.bytes(8))))
    fail("journal line {}: its bytes are not those that were written", entry.id);
}

// In a transaction. The numbers stay.
void move_lines_of_1(Connection& to) {
  to.execute("ALTER TABLE line RENAME TO line_of_1");
  to.execute("DROP INDEX line_unfinished");
  to.execute(kSchema);
  Statement old(to, kSelectLinesOf1), insert(to, kInsertLine);
  while (old.step()) insert_line(insert, read_line(old));
}

}  // namespace

void prepare_schema(Connection& to, const std::string& path) {
  const int64_t application = to.query_integer("PRAGMA application_id");
  const bool is_new = application == 0 && to.query_integer("PRAGMA schema_version") == 0;
  if (!is_new && application != kApplication)
    fail("{}: expected a journal, found another program's database", path);
  const int64_t version = is_new ? 0 : to.query_integer("PRAGMA user_version");
  if (version == kVersion) return;
  if (version > kVersion)
    fail("{}: expected a journal of version {}, found version {}", path, kVersion, version);
  to.execute("BEGIN IMMEDIATE");
  if (version == 1)
    move_lines_of_1(to);
  else
    to.execute(kSchema);
  if (version == 1) to.execute("DROP TABLE line_of_1");
  to.execute(fmt::format("PRAGMA application_id = {}", kApplication).c_str());
  to.execute(fmt::format("PRAGMA user_version = {}", kVersion).c_str());
  to.execute("COMMIT");
}

void insert_line(Statement& insert, const JournalLine& line) {
  const JournalEntry& e = line.entry;
  const std::string prompts = bytes_of(e.prompts), params = bytes_of(e.params);
  insert.reset();
  line.number > 0 ? insert.bind(line.number) : insert.bind_null();
  insert.bind(e.id).bind(e.created).bind(e.owner);
  e.idempotency_key.empty() ? insert.bind_null() : insert.bind(e.idempotency_key);
  insert.bind(e.endpoint).bind(e.request).bind_blob(prompts).bind_blob(params).bind(e.arithmetic);
  insert.bind_blob(bytes_of(e.model)).bind_blob(bytes_of(digest_of(e, prompts, params)));
  line.outcome ? insert.bind(static_cast<int64_t>(*line.outcome)) : insert.bind_null();
  insert.run();
}

JournalLine read_line(const Statement& row) {
  JournalLine line{.number = row.integer(0)};
  JournalEntry& e = line.entry;
  e.id = row.bytes(1);
  e.created = row.integer(2);
  e.owner = row.bytes(3);
  e.idempotency_key = row.bytes(4);
  e.endpoint = row.bytes(5);
  e.request = row.bytes(6);
  e.arithmetic = row.bytes(9);
  const std::string model = row.bytes(10);
  if (model.size() != e.model.size())
    fail("journal line {}: expected a digest of {} bytes, found {}", e.id, e.model.size(),
         model.size());
  std::copy(model.begin(), model.end(), e.model.begin());
  check_digest(row, e);
  e.prompts = prompts_of(row.bytes(7));
  e.params = params_of(row.bytes(8));
  if (!row.is_null(12)) {
    const int64_t outcome = row.integer(12);
    if (outcome < 0 || outcome > static_cast<int64_t>(Outcome::failed))
      fail("journal line {}: expected an outcome from 0 to 2, found {}", e.id, outcome);
    line.outcome = static_cast<Outcome>(outcome);
  }
  return line;
}

std::string changed_lines(const Connection& in) {
  constexpr size_t kMostNamed = 10;
  std::vector<std::string> ids;
  size_t count = 0;
  Statement rows(in, kSelectLines);
  while (rows.step()) {
    try {
      read_line(rows);
    } catch (const sqlite::SqliteError&) {
      throw;
    } catch (const Error&) {
      if (count++ < kMostNamed) ids.push_back(rows.bytes(1));
    }
  }
  if (count == 0) return "";
  return fmt::format("{} of its lines are not as they were written and cannot be answered: {}{}",
                     count, fmt::join(ids, ", "), count > ids.size() ? ", ..." : "");
}

}  // namespace invar::server
