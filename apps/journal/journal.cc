#include "journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "sqlite.h"
#include "wire.h"

namespace invar::server {

namespace {

using sqlite::Connection;
using sqlite::Statement;

constexpr int64_t kApplication = 0x494e564a;  // "INVJ"
constexpr int64_t kVersion = 1;
constexpr int kLongWal = 1000;  // pages: past this the log is copied into the file

constexpr const char* kSchema = R"(
CREATE TABLE line(
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  created INTEGER NOT NULL,
  idempotency_key TEXT UNIQUE,
  endpoint TEXT NOT NULL,
  request TEXT NOT NULL,
  prompts BLOB NOT NULL,
  params BLOB NOT NULL,
  arithmetic TEXT NOT NULL,
  weights BLOB NOT NULL,
  outcome INTEGER);
CREATE INDEX line_unfinished ON line(number) WHERE outcome IS NULL;
)";
// Came later than version 1 of the lines, which it leaves as they are.
constexpr const char* kConversations =
    "CREATE TABLE IF NOT EXISTS conversation(id TEXT PRIMARY KEY, items TEXT NOT NULL)";
constexpr const char* kColumns =
    "SELECT number, id, created, idempotency_key, endpoint, request, prompts, params, arithmetic, "
    "weights, outcome FROM line ";

int lock_of(const std::string& path) {
  const std::string name = path + ".lock";
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) fail("{}: cannot be opened: {}", name, std::strerror(errno));
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  ::close(file);
  fail("{}: another process has this journal open", path);
}

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

JournalLine read_line(const Statement& row) {
  JournalLine line{.number = row.integer(0)};
  JournalEntry& e = line.entry;
  e.id = row.bytes(1);
  e.created = row.integer(2);
  e.idempotency_key = row.bytes(3);
  e.endpoint = row.bytes(4);
  e.request = row.bytes(5);
  e.prompts = prompts_of(row.bytes(6));
  e.params = params_of(row.bytes(7));
  e.arithmetic = row.bytes(8);
  const std::string weights = row.bytes(9);
  if (weights.size() != e.weights.size())
    fail("journal line {}: expected a digest of {} bytes, found {}", e.id, e.weights.size(),
         weights.size());
  std::copy(weights.begin(), weights.end(), e.weights.begin());
  if (!row.is_null(10)) {
    const int64_t outcome = row.integer(10);
    if (outcome < 0 || outcome > static_cast<int64_t>(Outcome::failed))
      fail("journal line {}: expected an outcome from 0 to 2, found {}", e.id, outcome);
    line.outcome = static_cast<Outcome>(outcome);
  }
  return line;
}

std::vector<JournalLine> read_lines(Statement& rows) {
  std::vector<JournalLine> lines;
  while (rows.step()) lines.push_back(read_line(rows));
  return lines;
}

}  // namespace

// The thread that writes has one connection, the one that copies the log another, readers a third.
struct Journal::Connections {
  Connections(const std::string& path, const JournalOptions& options)
      : writer(path), checkpointer(path), reader(path) {
    prepare(path, options);
    insert.emplace(writer,
                   "INSERT INTO line(id, created, idempotency_key, endpoint, request, prompts, "
                   "params, arithmetic, weights) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)");
    keep.emplace(writer, "INSERT OR REPLACE INTO conversation(id, items) VALUES(?, ?)");
    forget_conversations.emplace(
        writer,
        "DELETE FROM conversation WHERE id IN (SELECT id FROM line WHERE outcome IS NOT NULL AND "
        "created < ?)");
    update.emplace(writer, "UPDATE line SET outcome = ? WHERE id = ? AND outcome IS NULL");
    forget.emplace(writer, "DELETE FROM line WHERE outcome IS NOT NULL AND created < ?");
  }

  void prepare(const std::string& path, const JournalOptions& options) {
    const int64_t application = writer.query_integer("PRAGMA application_id");
    const bool is_new = application == 0 && writer.query_integer("PRAGMA schema_version") == 0;
    if (!is_new && application != kApplication)
      fail("{}: expected a journal, found another program's database", path);
    if (writer.query_text("PRAGMA journal_mode = WAL") != "wal")
      fail("{}: expected a file system with a write-ahead log, found none", path);
    writer.execute(options.sync == JournalOptions::Sync::power_loss
                       ? "PRAGMA synchronous = FULL"
                       : "PRAGMA synchronous = NORMAL");
    if (is_new) {
      writer.execute("BEGIN IMMEDIATE");
      writer.execute(kSchema);
      writer.execute(fmt::format("PRAGMA application_id = {}", kApplication).c_str());
      writer.execute(fmt::format("PRAGMA user_version = {}", kVersion).c_str());
      writer.execute("COMMIT");
    }
    const int64_t version = writer.query_integer("PRAGMA user_version");
    if (version != kVersion)
      fail("{}: expected a journal of version {}, found version {}", path, kVersion, version);
    writer.execute(kConversations);
    checkpointer.query_integer("PRAGMA schema_version");  // reading opens the log
  }

  Connection writer, checkpointer;
  mutable std::mutex reading;
  Connection reader;
  std::optional<Statement> insert, update, keep, forget, forget_conversations;
};

struct Journal::Operation {
  enum class Kind { admit, end, keep, forget, nothing };
  Kind kind = Kind::admit;
  JournalEntry entry;        // admit; of an end and of what is kept only the id
  std::string conversation;  // keep
  Outcome outcome = Outcome::finished;
  int64_t created = 0;  // forget
  Done done;
  std::string error;
  bool again = false;  // a mark that found no room

  void finish() {
    if (done) std::exchange(done, {})(error);
  }

  std::string duplicate() const {
    return entry.idempotency_key.empty()
               ? fmt::format("journal: a line {} is there already", entry.id)
               : fmt::format(
                     "journal: a line {} or one with the idempotency key {} is there already",
                     entry.id, entry.idempotency_key);
  }

  void write(Connections& to) const {
    if (kind == Kind::admit) {
      Statement& s = to.insert->reset();
      s.bind(entry.id).bind(entry.created);
      entry.idempotency_key.empty() ? s.bind_null() : s.bind(entry.idempotency_key);
      s.bind(entry.endpoint).bind(entry.request);
      s.bind_blob(bytes_of(entry.prompts)).bind_blob(bytes_of(entry.params)).bind(entry.arithmetic);
      s.bind_blob({reinterpret_cast<const char*>(entry.weights.data()), entry.weights.size()});
      s.run();
    } else if (kind == Kind::end) {
      to.update->reset().bind(static_cast<int64_t>(outcome)).bind(entry.id).run();
      if (to.writer.changes() != 1)
        fail("journal: expected a line {} that has not ended, found none", entry.id);
    } else if (kind == Kind::keep) {
      to.keep->reset().bind(entry.id).bind(conversation).run();
    } else if (kind == Kind::forget) {
      to.forget_conversations->reset().bind(created).run();
      to.forget->reset().bind(created).run();
    }
  }
};

Journal::Journal(const std::string& path, const JournalOptions& options) : lock_(lock_of(path)) {
  try {
    connections_ = std::make_unique<Connections>(path, options);
  } catch (...) {
    ::close(lock_);
    throw;
  }
  // Copying the log waits for the disk, so requests must not: it has a thread of its own.
  sqlite3_wal_hook(
      connections_->writer.get(),
      [](void* self, sqlite3*, const char*, int pages) {
        auto& journal = *static_cast<Journal*>(self);
        if (pages >= kLongWal) {
          const std::lock_guard lock(journal.mutex_);
          journal.checkpoint_wanted_ = true;
          journal.wal_is_long_.notify_one();
        }
        return SQLITE_OK;
      },
      this);
  writer_ = std::jthread([this] { write_loop(); });
  checkpointer_ = std::jthread([this] { checkpoint_loop(); });
}

Journal::~Journal() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    queued_.notify_one();
    wal_is_long_.notify_one();
  }
  writer_.join();
  checkpointer_.join();
  connections_.reset();
  ::close(lock_);
}

void Journal::enqueue(std::unique_ptr<Operation> operation) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(operation));
  queued_.notify_one();
}

void Journal::admit(JournalEntry entry, Done done) {
  auto operation = std::make_unique<Operation>();
  operation->entry = std::move(entry);
  operation->done = std::move(done);
  enqueue(std::move(operation));
}

void Journal::end(const std::string& id, Outcome outcome, Done done) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::end;
  operation->entry.id = id;
  operation->outcome = outcome;
  operation->done = std::move(done);
  enqueue(std::move(operation));
}

void Journal::keep(const std::string& id, std::string conversation) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::keep;
  operation->entry.id = id;
  operation->conversation = std::move(conversation);
  enqueue(std::move(operation));
}

void Journal::forget_before(int64_t created, Done done) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::forget;
  operation->created = created;
  operation->done = std::move(done);
  enqueue(std::move(operation));
}

void Journal::admit(JournalEntry entry) {
  std::promise<std::string> done;
  admit(std::move(entry), [&](const std::string& error) { done.set_value(error); });
  if (const std::string error = done.get_future().get(); !error.empty()) throw Error(error);
}

void Journal::end_and_wait(const std::string& id, Outcome outcome) {
  std::promise<std::string> done;
  end(id, outcome, [&](const std::string& error) { done.set_value(error); });
  if (const std::string error = done.get_future().get(); !error.empty()) throw Error(error);
}

void Journal::wait() {
  std::promise<void> done;
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::nothing;
  operation->done = [&](const std::string&) { done.set_value(); };
  enqueue(std::move(operation));
  done.get_future().wait();
}

void Journal::write_loop() {
  std::deque<std::unique_ptr<Operation>> group, again;  // again: marks that found a full disk
  while (true) {
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) break;
      group.swap(queue_);
    }
    std::move(again.rbegin(), again.rend(), std::front_inserter(group));
    again.clear();
    write_group(group);
    for (auto& operation : group) {
      operation->finish();
      if (operation->again) again.push_back(std::move(operation));
    }
    group.clear();
  }
  if (!again.empty()) write_group(again);
}

// One transaction. What one line alone cannot have (an id that is there) fails that line; what the
// file cannot have (no room) fails all.
void Journal::write_group(std::deque<std::unique_ptr<Operation>>& group) {
  Connection& writer = connections_->writer;
  try {
    writer.execute("BEGIN IMMEDIATE");
    for (auto& operation : group) {
      operation->error.clear();
      operation->again = false;
      try {
        operation->write(*connections_);
      } catch (const sqlite::SqliteError& error) {
        if (!error.is_duplicate()) throw;
        operation->error = operation->duplicate();
      } catch (const Error& error) {
        operation->error = error.what();
      }
    }
    writer.execute("COMMIT");
  } catch (const Error& error) {
    for (auto& operation : group) {
      operation->error = error.what();
      operation->again =
          operation->kind == Operation::Kind::end || operation->kind == Operation::Kind::keep;
    }
    try {
      if (writer.in_transaction()) writer.execute("ROLLBACK");
    } catch (const Error&) {  // the next group says it again
    }
  }
}

void Journal::checkpoint_loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wal_is_long_.wait(lock, [&] { return stopping_ || checkpoint_wanted_; });
      if (stopping_) return;
      checkpoint_wanted_ = false;
    }
    // What it cannot do now (no room, a reader) it does next time.
    sqlite3_wal_checkpoint_v2(connections_->checkpointer.get(), nullptr, SQLITE_CHECKPOINT_PASSIVE,
                              nullptr, nullptr);
  }
}

std::optional<JournalLine> Journal::find(const std::string& id) const {
  const std::lock_guard lock(connections_->reading);
  Statement row(connections_->reader, (std::string(kColumns) + "WHERE id = ?").c_str());
  return row.bind(id).step() ? std::optional(read_line(row)) : std::nullopt;
}

std::optional<JournalLine> Journal::find_key(const std::string& key) const {
  const std::lock_guard lock(connections_->reading);
  Statement row(connections_->reader,
                (std::string(kColumns) + "WHERE idempotency_key = ?").c_str());
  return row.bind(key).step() ? std::optional(read_line(row)) : std::nullopt;
}

std::optional<std::string> Journal::find_conversation(const std::string& id) const {
  const std::lock_guard lock(connections_->reading);
  Statement row(connections_->reader, "SELECT items FROM conversation WHERE id = ?");
  return row.bind(id).step() ? std::optional(row.bytes(0)) : std::nullopt;
}

std::vector<JournalLine> Journal::unfinished() const {
  const std::lock_guard lock(connections_->reading);
  Statement rows(connections_->reader,
                 (std::string(kColumns) + "WHERE outcome IS NULL ORDER BY number").c_str());
  return read_lines(rows);
}

std::vector<JournalLine> Journal::all() const {
  const std::lock_guard lock(connections_->reading);
  Statement rows(connections_->reader, (std::string(kColumns) + "ORDER BY number").c_str());
  return read_lines(rows);
}

std::string Journal::check_integrity() const {
  const std::lock_guard lock(connections_->reading);
  const std::string found = connections_->reader.query_text("PRAGMA integrity_check");
  return found == "ok" ? "" : found;
}

}  // namespace invar::server
