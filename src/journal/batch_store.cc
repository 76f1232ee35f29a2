#include "batch_store.h"

#include <fmt/format.h>

#include "sqlite.h"

namespace invar::server {

using sqlite::Connection;
using sqlite::Statement;

namespace {

constexpr const char* kBatchSchema = R"(
CREATE TABLE IF NOT EXISTS file(
  id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, purpose TEXT NOT NULL,
  created INTEGER NOT NULL, bytes INTEGER NOT NULL, content BLOB, batch TEXT, of_errors INTEGER);
CREATE INDEX IF NOT EXISTS file_of_owner ON file(owner);
CREATE TABLE IF NOT EXISTS batch(
  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, endpoint TEXT NOT NULL,
  input_file TEXT NOT NULL, window TEXT NOT NULL, metadata TEXT NOT NULL, errors TEXT NOT NULL,
  created INTEGER NOT NULL, ended INTEGER NOT NULL, status INTEGER NOT NULL,
  output_file TEXT NOT NULL, error_file TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS batch_of_owner ON batch(owner);
CREATE TABLE IF NOT EXISTS batch_line(
  batch TEXT NOT NULL, number INTEGER NOT NULL, custom_id TEXT NOT NULL, body TEXT NOT NULL,
  is_error INTEGER, answer TEXT, PRIMARY KEY(batch, number)) WITHOUT ROWID;
)";
constexpr const char* kSelectBatch =
    "SELECT id, owner, endpoint, input_file, window, metadata, errors, created, ended, status, "
    "output_file, error_file, (SELECT COUNT(*) FROM batch_line WHERE batch = id), "
    "(SELECT COUNT(*) FROM batch_line WHERE batch = id AND is_error = 0), "
    "(SELECT COUNT(*) FROM batch_line WHERE batch = id AND is_error = 1) FROM batch ";

Batch batch_of(const Statement& row) {
  return {.id = row.bytes(0),
          .owner = row.bytes(1),
          .endpoint = row.bytes(2),
          .input_file = row.bytes(3),
          .window = row.bytes(4),
          .metadata = row.bytes(5),
          .errors = row.bytes(6),
          .created = row.integer(7),
          .ended = row.integer(8),
          .status = static_cast<Batch::Status>(row.integer(9)),
          .output_file = row.bytes(10),
          .error_file = row.bytes(11),
          .lines = row.integer(12),
          .completed = row.integer(13),
          .failed = row.integer(14)};
}

StoredFile file_of(const Statement& row) {
  return {.id = row.bytes(0),
          .owner = row.bytes(1),
          .name = row.bytes(2),
          .purpose = row.bytes(3),
          .created = row.integer(4),
          .bytes = row.integer(5)};
}

constexpr const char* kSelectFile =
    "SELECT id, owner, name, purpose, created, bytes FROM file WHERE ";

// Commits at its end unless something was thrown.
class Transaction {
 public:
  explicit Transaction(Connection& in) : in_(in) { in_.execute("BEGIN IMMEDIATE"); }
  ~Transaction() {
    if (!in_.in_transaction()) return;
    try {
      in_.execute("ROLLBACK");
    } catch (const Error&) {  // SQLite has rolled back already
    }
  }
  void commit() { in_.execute("COMMIT"); }

 private:
  Connection& in_;
};

}  // namespace

const char* name_of(Batch::Status status) {
  switch (status) {
    case Batch::Status::in_progress:
      return "in_progress";
    case Batch::Status::cancelling:
      return "cancelling";
    case Batch::Status::completed:
      return "completed";
    case Batch::Status::cancelled:
      return "cancelled";
    case Batch::Status::failed:
      return "failed";
  }
  return "";
}

struct BatchStore::Connections {
  explicit Connections(const std::string& path) : db(path) {
    if (db.query_text("PRAGMA journal_mode = WAL") != "wal")
      fail("{}: expected a file system with a write-ahead log, found none", path);
    db.execute("PRAGMA synchronous = NORMAL");
    db.execute(kBatchSchema);
  }
  Connection db;
};

BatchStore::BatchStore(const std::string& path, int64_t most_bytes)
    : most_bytes_(most_bytes), in_(std::make_unique<Connections>(path)) {}

BatchStore::~BatchStore() = default;

void BatchStore::check_room(const std::string& owner, int64_t bytes) const {
  Statement files(in_->db, "SELECT TOTAL(bytes) FROM file WHERE owner = ? AND batch IS NULL");
  files.bind(owner).step();
  Statement lines(in_->db,
                  "SELECT TOTAL(LENGTH(CAST(body AS BLOB)) + IFNULL(LENGTH(CAST(answer AS BLOB)), "
                  "0)) FROM batch_line WHERE batch IN (SELECT id FROM batch WHERE owner = ?)");
  lines.bind(owner).step();
  const int64_t held = files.integer(0) + lines.integer(0);
  if (held + bytes > most_bytes_)
    throw StoreFull(
        fmt::format("expected files and batches of one key of at most {} bytes, found "
                    "{} and {} more: delete files that are not needed",
                    most_bytes_, held, bytes));
}

void BatchStore::add_file(const StoredFile& file, std::string_view content) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(in_->db);
  check_room(file.owner, std::ssize(content));
  Statement insert(in_->db,
                   "INSERT INTO file(id, owner, name, purpose, created, bytes, content) VALUES(?, "
                   "?, ?, ?, ?, ?, ?)");
  insert.bind(file.id).bind(file.owner).bind(file.name).bind(file.purpose).bind(file.created);
  insert.bind(std::ssize(content)).bind_blob(content).run();
  transaction.commit();
}

std::optional<StoredFile> BatchStore::find_file(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  Statement select(in_->db, fmt::format("{} id = ?", kSelectFile).c_str());
  if (!select.bind(id).step()) return std::nullopt;
  return file_of(select);
}

std::vector<StoredFile> BatchStore::files(const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  Statement select(
      in_->db,
      fmt::format("{} owner = ? ORDER BY created DESC, id LIMIT 10000", kSelectFile).c_str());
  select.bind(owner);
  std::vector<StoredFile> all;
  while (select.step()) all.push_back(file_of(select));
  return all;
}

void BatchStore::remove_file(const std::string& id) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(in_->db);
  // A batch's answers go with its file.
  Statement(in_->db,
            "UPDATE batch_line SET answer = '' WHERE answer IS NOT NULL AND (batch, is_error) IN "
            "(SELECT batch, of_errors FROM file WHERE id = ? AND batch IS NOT NULL)")
      .bind(id)
      .run();
  Statement(in_->db, "DELETE FROM file WHERE id = ?").bind(id).run();
  transaction.commit();
}

std::string BatchStore::content(const std::string& id, int64_t& after, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  Statement file(in_->db, "SELECT content, batch, of_errors FROM file WHERE id = ?");
  std::string text;
  const int64_t first = std::exchange(after, -1);
  if (!file.bind(id).step()) return text;
  if (file.is_null(1)) return file.bytes(0);
  Statement lines(in_->db,
                  "SELECT number, answer FROM batch_line WHERE batch = ? AND number > ? AND "
                  "is_error = ? ORDER BY number");
  lines.bind(file.bytes(1)).bind(first).bind(file.integer(2));
  while (lines.step()) {
    text += lines.bytes(1);
    text += '\n';
    if (text.size() < bytes) continue;
    after = lines.integer(0);
    break;
  }
  return text;
}

void BatchStore::add_batch(const Batch& batch, const std::vector<BatchLine>& lines) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(in_->db);
  int64_t bytes = 0;
  for (const BatchLine& line : lines) bytes += std::ssize(line.body);
  check_room(batch.owner, bytes);
  Statement insert(in_->db,
                   "INSERT INTO batch(id, owner, endpoint, input_file, window, metadata, errors, "
                   "created, ended, status, output_file, error_file) VALUES(?, ?, ?, ?, ?, ?, ?, "
                   "?, ?, ?, '', '')");
  insert.bind(batch.id).bind(batch.owner).bind(batch.endpoint).bind(batch.input_file);
  insert.bind(batch.window).bind(batch.metadata).bind(batch.errors).bind(batch.created);
  insert.bind(batch.ended).bind(static_cast<int64_t>(batch.status)).run();
  Statement add(in_->db,
                "INSERT INTO batch_line(batch, number, custom_id, body) VALUES(?, ?, ?, ?)");
  for (const BatchLine& line : lines)
    add.reset().bind(batch.id).bind(line.number).bind(line.custom_id).bind(line.body).run();
  transaction.commit();
}

std::optional<Batch> BatchStore::find_batch(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  Statement select(in_->db, fmt::format("{} WHERE id = ?", kSelectBatch).c_str());
  if (!select.bind(id).step()) return std::nullopt;
  return batch_of(select);
}

std::vector<Batch> BatchStore::batches(const std::string& owner, size_t most) const {
  const std::lock_guard lock(mutex_);
  Statement select(
      in_->db,
      fmt::format("{} WHERE owner = ? ORDER BY number DESC LIMIT ?", kSelectBatch).c_str());
  select.bind(owner).bind(static_cast<int64_t>(most));
  std::vector<Batch> all;
  while (select.step()) all.push_back(batch_of(select));
  return all;
}

std::vector<Batch> BatchStore::unfinished() const {
  const std::lock_guard lock(mutex_);
  Statement select(in_->db,
                   fmt::format("{} WHERE status <= ? ORDER BY number", kSelectBatch).c_str());
  select.bind(static_cast<int64_t>(Batch::Status::cancelling));
  std::vector<Batch> all;
  while (select.step()) all.push_back(batch_of(select));
  return all;
}

std::optional<BatchLine> BatchStore::next_line(const std::string& batch, int64_t after) const {
  const std::lock_guard lock(mutex_);
  Statement select(in_->db,
                   "SELECT number, custom_id, body FROM batch_line WHERE batch = ? AND number > ? "
                   "AND is_error IS NULL ORDER BY number LIMIT 1");
  if (!select.bind(batch).bind(after).step()) return std::nullopt;
  return BatchLine{select.integer(0), select.bytes(1), select.bytes(2)};
}

void BatchStore::add_answer(const std::string& batch, int64_t line, bool is_error,
                            std::string_view text) {
  const std::lock_guard lock(mutex_);
  Statement update(in_->db,
                   "UPDATE batch_line SET is_error = ?, answer = ? WHERE batch = ? AND number = ? "
                   "AND is_error IS NULL");
  update.bind(int64_t{is_error}).bind(text).bind(batch).bind(line).run();
}

void BatchStore::set_status(const std::string& batch, Batch::Status status) {
  const std::lock_guard lock(mutex_);
  Statement update(in_->db, "UPDATE batch SET status = ? WHERE id = ?");
  update.bind(static_cast<int64_t>(status)).bind(batch).run();
}

void BatchStore::end_batch(const std::string& batch, Batch::Status status, int64_t now,
                           const std::string& output_file, const std::string& error_file) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(in_->db);
  Statement insert(in_->db,
                   "INSERT INTO file(id, owner, name, purpose, created, bytes, batch, of_errors) "
                   "SELECT ?1, owner, ?1 || '.jsonl', 'batch_output', ?2, (SELECT "
                   "TOTAL(LENGTH(CAST(answer AS BLOB)) + 1) FROM batch_line WHERE batch = ?3 AND "
                   "is_error = ?4), ?3, ?4 FROM batch WHERE id = ?3 AND EXISTS(SELECT 1 FROM "
                   "batch_line WHERE batch = ?3 AND is_error = ?4)");
  const auto make = [&](const std::string& id, int64_t of_errors) {
    insert.reset().bind(id).bind(now).bind(batch).bind(of_errors).run();
    return in_->db.changes() > 0 ? id : std::string();
  };
  const std::string output = make(output_file, 0), errors = make(error_file, 1);
  Statement update(in_->db,
                   "UPDATE batch SET status = ?, ended = ?, output_file = ?, error_file = ? WHERE "
                   "id = ?");
  update.bind(static_cast<int64_t>(status)).bind(now).bind(output).bind(errors).bind(batch).run();
  transaction.commit();
}

void BatchStore::forget_before(int64_t time) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(in_->db);
  const auto over = static_cast<int64_t>(Batch::Status::completed);
  Statement(in_->db,
            "DELETE FROM batch_line WHERE batch IN (SELECT id FROM batch WHERE status >= ? AND "
            "ended < ?)")
      .bind(over)
      .bind(time)
      .run();
  Statement(in_->db, "DELETE FROM batch WHERE status >= ? AND ended < ?")
      .bind(over)
      .bind(time)
      .run();
  Statement(in_->db, "DELETE FROM file WHERE created < ?").bind(time).run();
  transaction.commit();
}

}  // namespace invar::server
