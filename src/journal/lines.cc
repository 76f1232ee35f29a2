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
// 1 had neither owner nor digest, 2 whole conversations, 3 no cached tokens.
constexpr int64_t kVersion = 4;

// Long columns come last: those before them are read without them.
constexpr const char* kSchema = R"(
CREATE TABLE line(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  created INTEGER NOT NULL,
  owner TEXT NOT NULL,
  idempotency_key TEXT,
  endpoint TEXT NOT NULL,
  outcome INTEGER,
  bytes INTEGER NOT NULL,
  body BLOB,
  arithmetic TEXT NOT NULL,
  weights BLOB NOT NULL,  -- JournalEntry::model
  digest BLOB,
  params BLOB NOT NULL,
  prompts BLOB NOT NULL,
  request TEXT NOT NULL,
  UNIQUE(owner, idempotency_key));
CREATE INDEX line_unfinished ON line(number) WHERE outcome IS NULL;
CREATE INDEX line_ended ON line(number) WHERE outcome IS NOT NULL;
CREATE INDEX line_ended_of_owner ON line(owner, number) WHERE outcome IS NOT NULL;
CREATE INDEX line_bytes ON line(owner, bytes);
CREATE TABLE said(
  id TEXT PRIMARY KEY,
  previous TEXT,
  bytes INTEGER NOT NULL,
  input TEXT NOT NULL,
  output TEXT);
CREATE INDEX said_previous ON said(previous) WHERE previous IS NOT NULL;
)";
// Apart from the lines, which are written once; it goes with them.
constexpr const char* kCachedSchema = R"(
CREATE TABLE IF NOT EXISTS cached(line INTEGER PRIMARY KEY, tokens INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS line_is_gone AFTER DELETE ON line
  BEGIN DELETE FROM cached WHERE line = OLD.number; END;
)";
// Made when there is an adapter.
constexpr const char* kAdapterSchema = R"(
CREATE TABLE IF NOT EXISTS adapter(
  name TEXT PRIMARY KEY,
  directory TEXT NOT NULL,
  digest BLOB NOT NULL);
)";
// Lines of an older version in the columns of this one. Those without a digest have none that could
// be wrong; the digest of a body is the one of what was kept, which was all.
constexpr const char* kMoveLines =
    "INSERT INTO line(number, id, created, owner, idempotency_key, endpoint, outcome, bytes, "
    "arithmetic, weights, digest, params, prompts, request) "
    "SELECT number, id, created, {}, idempotency_key, endpoint, outcome, "
    "length(CAST(request AS BLOB)) + length(prompts), arithmetic, weights, {}, params, prompts, "
    "request FROM old_line ORDER BY number";
constexpr const char* kMoveConversations =
    "INSERT INTO said(id, bytes, input, output) "
    "SELECT id, length(CAST(items AS BLOB)), items, '[]' FROM conversation";

using Prompts = std::vector<Shared<std::vector<int32_t>>>;

std::string bytes_of(const Prompts& prompts) {
  ByteWriter out;
  out.put(static_cast<uint64_t>(prompts.size()));
  for (const auto& prompt : prompts) out.put_vector(prompt.get());
  return out.take();
}

Prompts prompts_of(std::string_view bytes) {
  ByteReader in(bytes, "a journal's prompts");
  Prompts prompts(in.get_count(sizeof(uint64_t)));
  for (auto& prompt : prompts) prompt = in.get_vector<int32_t>();
  in.expect_end();
  return prompts;
}

std::string bytes_of(const SamplingParams& params) {
  ByteWriter out;
  put_params(out, params);
  return out.take();
}

SamplingParams params_of(std::string_view bytes) {
  ByteReader in(bytes, "a journal's sampling parameters");
  const SamplingParams params = get_params(in);
  in.expect_end();
  return params;
}

std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The digest of all that an answer's bytes depend on, as columns hold it. `body`: empty in older
// versions.
Digest digest_of(const JournalEntry& e, std::string_view body, std::string_view prompts,
                 std::string_view params) {
  Sha256 digest;
  const auto add = [&](std::string_view bytes) { digest.update(std::as_bytes(std::span(bytes))); };
  const auto add_number = [&](auto number) {
    ByteWriter out;
    out.put(number);
    add(out.take());
  };
  add_number(e.created);
  for (const std::string_view text :
       {std::string_view(e.id), std::string_view(e.owner), std::string_view(e.idempotency_key),
        std::string_view(e.endpoint), std::string_view(e.request), prompts, params,
        std::string_view(e.arithmetic), bytes_of(e.model)}) {
    add_number(static_cast<uint64_t>(text.size()));
    add(text);
  }
  add(body);
  return digest.finish();
}

Digest read_digest(const Statement& row, int column, std::string_view of) {
  const std::string_view bytes = row.view(column);
  Digest digest{};
  if (bytes.size() != digest.size())
    fail("journal {}: expected a digest of {} bytes, found {}", of, digest.size(), bytes.size());
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

// Reads all but the columns that are decoded: the prompts and the parameters.
JournalLine read_plain(const Statement& row) {
  JournalLine line{.number = row.integer(0)};
  JournalEntry& e = line.entry;
  e.id = row.bytes(1);
  e.created = row.integer(2);
  e.owner = row.bytes(3);
  e.idempotency_key = row.bytes(4);
  e.endpoint = row.bytes(5);
  e.arithmetic = row.bytes(8);
  const std::string name = "line " + e.id;
  e.model = read_digest(row, 9, name);
  e.request = row.bytes(13);
  e.body = row.is_null(7) ? sha256(std::as_bytes(std::span(e.request))) : read_digest(row, 7, name);
  if (!row.is_null(10) &&
      row.view(10) != bytes_of(digest_of(e, row.view(7), row.view(12), row.view(11))))
    fail("journal line {}: its bytes are not those that were written", e.id);
  return line;
}

bool has_table(const Connection& in, const char* name) {
  Statement row(in, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?");
  return row.bind(name).step();
}

// In a transaction. The numbers stay.
void move_lines(Connection& to, int64_t version) {
  to.execute("ALTER TABLE line RENAME TO old_line");
  to.execute("DROP INDEX line_unfinished");
  to.execute(kSchema);
  const bool had_owners = version > 1;
  to.execute(
      fmt::format(kMoveLines, had_owners ? "owner" : "'unknown'", had_owners ? "digest" : "NULL")
          .c_str());
  to.execute("DROP TABLE old_line");
  if (!has_table(to, "conversation")) return;
  to.execute(kMoveConversations);
  to.execute("DROP TABLE conversation");
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
  if (is_new) to.execute(kSchema);
  if (!is_new && version < 3) move_lines(to, version);
  to.execute(kCachedSchema);
  to.execute(fmt::format("PRAGMA application_id = {}", kApplication).c_str());
  to.execute(fmt::format("PRAGMA user_version = {}", kVersion).c_str());
  to.execute("COMMIT");
}

int64_t bytes_of(const JournalEntry& e) {
  constexpr size_t kRest = 256;  // numbers, digests, the row itself
  size_t bytes = kRest + e.id.size() + e.owner.size() + e.idempotency_key.size() +
                 e.request.size() + bytes_of(e.params).size();
  for (const auto& prompt : e.prompts) bytes += sizeof(uint64_t) + prompt.size() * sizeof(int32_t);
  return static_cast<int64_t>(bytes);
}

void insert_line(Statement& insert, const JournalEntry& e, int64_t bytes) {
  const std::string prompts = bytes_of(e.prompts), params = bytes_of(e.params);
  const std::string_view body = bytes_of(e.body);
  insert.reset().bind(e.id).bind(e.created).bind(e.owner);
  e.idempotency_key.empty() ? insert.bind_null() : insert.bind(e.idempotency_key);
  insert.bind(e.endpoint).bind(bytes).bind_blob(body).bind(e.arithmetic);
  insert.bind_blob(bytes_of(e.model)).bind_blob(bytes_of(digest_of(e, body, prompts, params)));
  insert.bind_blob(params).bind_blob(prompts).bind(e.request).run();
}

JournalLine read_line(const Statement& row) {
  JournalLine line = read_plain(row);
  JournalEntry& e = line.entry;
  e.prompts = prompts_of(row.view(12));
  e.params = params_of(row.view(11));
  if (!row.is_null(6)) {
    const int64_t outcome = row.integer(6);
    if (outcome < 0 || outcome > static_cast<int64_t>(Outcome::failed))
      fail("journal line {}: expected an outcome from 0 to 2, found {}", e.id, outcome);
    line.outcome = static_cast<Outcome>(outcome);
  }
  if (!row.is_null(14)) line.cached = row.integer(14);
  return line;
}

void keep_adapter(Connection& to, const KeptAdapter& adapter) {
  to.execute(kAdapterSchema);
  Statement row(to, "INSERT OR REPLACE INTO adapter(name, directory, digest) VALUES(?, ?, ?)");
  row.bind(adapter.name).bind(adapter.directory).bind_blob(bytes_of(adapter.digest)).run();
}

void forget_adapter(const Connection& to, const std::string& name) {
  if (!has_table(to, "adapter")) return;
  Statement(to, "DELETE FROM adapter WHERE name = ?").bind(name).run();
}

std::vector<KeptAdapter> read_adapters(const Connection& in) {
  if (!has_table(in, "adapter")) return {};
  Statement row(in, "SELECT name, directory, digest FROM adapter ORDER BY name");
  std::vector<KeptAdapter> adapters;
  while (row.step())
    adapters.push_back(
        {row.bytes(0), row.bytes(1), read_digest(row, 2, "adapter " + row.bytes(0))});
  return adapters;
}

std::string changed_lines(const Connection& in) {
  constexpr size_t kMostNamed = 10;
  std::vector<std::string> ids;
  size_t count = 0;
  Statement rows(in, kSelectLines);
  while (rows.step()) {
    try {
      rows.is_null(10) ? read_line(rows) : read_plain(rows);
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
