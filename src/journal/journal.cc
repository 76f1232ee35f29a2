#include "journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "line_mark.h"
#include "lines.h"
#include "log_check.h"
#include "sqlite.h"

namespace invar::server {

namespace {

using sqlite::Connection;
using sqlite::Statement;

constexpr int kLongWal = 1000;  // pages: past this the log is copied into the file

int lock_of(const std::string& path) {
  const std::string name = path + ".lock";
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) fail("{}: cannot be opened: {}", name, std::strerror(errno));
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  ::close(file);
  fail("{}: another process has this journal open", path);
}

// Damage stops the start unless it is accepted: a server that went on without a word would answer
// an idempotency key that it has forgotten with another answer.
void report(const std::string& damage, const JournalOptions& options) {
  if (damage.empty()) return;
  if (!options.accept_loss)
    fail("{}; --journal-accept-loss goes on without them, and takes their idempotency keys for new",
         damage);
  fmt::print(stderr, "invar: warning: {}\n", damage);
}

// Lines that were admitted and are not in the file.
void report_cut(const std::string& path, int64_t found, int64_t admitted, bool strict) {
  if (found >= admitted) return;
  const std::string lost = fmt::format(
      "{}: the last {} of {} lines that were admitted are lost, as where the log {}-wal is cut off "
      "or deleted",
      path, admitted - found, admitted, path);
  if (strict)
    fail(
        "{}; restore it, or start without --journal-strict, which takes their idempotency keys for "
        "new",
        lost);
  fmt::print(stderr, "invar: warning: {}; their idempotency keys are taken for new\n", lost);
}

// What SQLite finds wrong with the file, or nothing.
std::string wrong_pages(Connection& in) {
  const std::string found = in.query_text("PRAGMA integrity_check(1)");
  return found == "ok" ? "" : found;
}

}  // namespace

// The thread that writes has one connection, the one that copies the log another, readers a third.
struct Journal::Connections {
  Connections(const std::string& path, const JournalOptions& options)
      : writer(path), checkpointer(path), reader(path), mark(path + ".mark") {
    prepare(path, options);
    last_line = writer.query_integer("SELECT seq FROM sqlite_sequence WHERE name = 'line'");
    report_cut(path, last_line, mark.lines(), options.strict);
    mark.write(last_line);
    insert.emplace(writer, kInsertLine);
    update.emplace(writer, "UPDATE line SET outcome = ? WHERE id = ? AND outcome IS NULL");
    settle.emplace(writer, kSettleCached);
    settled.emplace(writer, kSelectCached);
    conversations.emplace(writer);
    retention.emplace(writer, *conversations, options.quota);
  }

  void prepare(const std::string& path, const JournalOptions& options) {
    const std::string wrong = wrong_pages(writer);
    if (!wrong.empty())
      fail(
          "{}: the file was changed and cannot be read as it was written ({}); restore it, or "
          "begin another",
          path, wrong);
    if (writer.query_text("PRAGMA journal_mode = WAL") != "wal")
      fail("{}: expected a file system with a write-ahead log, found none", path);
    writer.execute(options.sync == JournalOptions::Sync::power_loss
                       ? "PRAGMA synchronous = FULL"
                       : "PRAGMA synchronous = NORMAL");
    // Cut off when it begins again: what stands in it is of one log (log_check.cc).
    writer.execute("PRAGMA journal_size_limit = 0");
    prepare_schema(writer, path);
    if (const std::string changed = changed_lines(writer); !changed.empty())
      report(fmt::format("{}: {}", path, changed), options);
    checkpointer.query_integer("PRAGMA schema_version");  // reading opens the log
  }

  Connection writer, checkpointer;
  mutable std::mutex reading;
  Connection reader;
  LineMark mark;
  int64_t last_line = 0;  // its number
  std::optional<Statement> insert, update, settle, settled;
  std::optional<Conversations> conversations;
  std::optional<Retention> retention;
};

struct Journal::Operation {
  enum class Kind { admit, end, keep, settle_cached, forget, forget_one, nothing };
  Kind kind = Kind::admit;
  JournalEntry entry;        // admit; of an end and of what is kept only the id
  std::optional<Said> said;  // admit
  std::string output;        // keep
  Outcome outcome = Outcome::finished;
  int64_t created = 0;  // forget
  int64_t cached = 0;   // settle_cached; then the number that holds
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

  void write(Connections& to) {
    if (kind == Kind::admit) {
      const auto bytes = bytes_of(entry) + (said ? std::ssize(said->input) : 0);
      to.retention->make_room(entry.owner, bytes);
      insert_line(*to.insert, entry, bytes);
      to.last_line = sqlite3_last_insert_rowid(to.writer.get());
      to.retention->add(entry.owner, bytes);
      if (said) to.conversations->begin(entry.id, *said);
    } else if (kind == Kind::end) {
      to.update->reset().bind(static_cast<int64_t>(outcome)).bind(entry.id).run();
      if (to.writer.changes() != 1)
        fail("journal: expected a line {} that has not ended, found none", entry.id);
    } else if (kind == Kind::keep) {
      if (to.conversations->end(entry.id, output)) to.retention->grow(entry.id, std::ssize(output));
    } else if (kind == Kind::settle_cached) {
      to.settle->reset().bind(cached).bind(entry.id).run();
      if (!to.settled->reset().bind(entry.id).step())
        fail("journal: expected a line {}, found none", entry.id);
      cached = to.settled->integer(0);
      to.settled->reset();
    } else if (kind == Kind::forget) {
      to.retention->forget_before(created);
    } else if (kind == Kind::forget_one) {
      to.retention->forget_line(entry.id);
    }
  }
};

Journal::Journal(const std::string& path, const JournalOptions& options) : lock_(lock_of(path)) {
  try {
    report(lost_frames(path + "-wal"), options);
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

void Journal::admit(JournalEntry entry, std::optional<Said> said, Done done) {
  auto operation = std::make_unique<Operation>();
  operation->entry = std::move(entry);
  operation->said = std::move(said);
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

void Journal::keep(const std::string& id, std::string output) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::keep;
  operation->entry.id = id;
  operation->output = std::move(output);
  enqueue(std::move(operation));
}

void Journal::settle_cached(const std::string& id, int64_t tokens,
                            std::function<void(int64_t)> done) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::settle_cached;
  operation->entry.id = id;
  operation->cached = tokens;
  operation->done = [done = std::move(done), &cached = operation->cached](
                        const std::string& error) { done(error.empty() ? cached : 0); };
  enqueue(std::move(operation));
}

int64_t Journal::settle_cached(const std::string& id, int64_t tokens) {
  std::promise<int64_t> done;
  settle_cached(id, tokens, [&](int64_t settled) { done.set_value(settled); });
  return done.get_future().get();
}

void Journal::forget_before(int64_t created, Done done) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::forget;
  operation->created = created;
  operation->done = std::move(done);
  enqueue(std::move(operation));
}

void Journal::admit(JournalEntry entry, std::optional<Said> said) {
  std::promise<std::string> done;
  admit(std::move(entry), std::move(said),
        [&](const std::string& error) { done.set_value(error); });
  if (const std::string error = done.get_future().get(); !error.empty()) throw Error(error);
}

void Journal::end_and_wait(const std::string& id, Outcome outcome) {
  std::promise<std::string> done;
  end(id, outcome, [&](const std::string& error) { done.set_value(error); });
  if (const std::string error = done.get_future().get(); !error.empty()) throw Error(error);
}

void Journal::forget_and_wait(const std::string& id) {
  std::promise<std::string> done;
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::forget_one;
  operation->entry.id = id;
  operation->done = [&](const std::string& error) { done.set_value(error); };
  enqueue(std::move(operation));
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
  const Retention::Usage before = connections_->retention->usage();
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
    connections_->mark.write(connections_->last_line);
  } catch (const Error& error) {
    connections_->retention->set_usage(before);
    connections_->last_line = connections_->mark.lines();
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
  Statement row(connections_->reader, (std::string(kSelectLines) + "WHERE id = ?").c_str());
  return row.bind(id).step() ? std::optional(read_line(row)) : std::nullopt;
}

std::optional<JournalLine> Journal::find_key(const std::string& owner,
                                             const std::string& key) const {
  const std::lock_guard lock(connections_->reading);
  Statement row(connections_->reader,
                (std::string(kSelectLines) + "WHERE owner = ? AND idempotency_key = ?").c_str());
  for (const std::string& one : {owner, std::string(kUnknownOwner)})
    if (row.reset().bind(one).bind(key).step()) return read_line(row);
  return std::nullopt;
}

std::optional<Conversation> Journal::find_conversation(const std::string& id) const {
  const std::lock_guard lock(connections_->reading);
  return server::find_conversation(connections_->reader, id);
}

std::optional<std::string> Journal::find_input(const std::string& id) const {
  const std::lock_guard lock(connections_->reading);
  Statement row(connections_->reader, "SELECT input FROM said WHERE id = ?");
  return row.bind(id).step() ? std::optional<std::string>(row.bytes(0)) : std::nullopt;
}

int64_t Journal::bytes_of_line(const std::string& id) const {
  const std::lock_guard lock(connections_->reading);
  Statement row(connections_->reader, "SELECT bytes FROM line WHERE id = ?");
  return row.bind(id).step() ? row.integer(0) : 0;
}

int64_t Journal::bytes_of_key(const std::string& owner, const std::string& key) const {
  const std::lock_guard lock(connections_->reading);
  Statement row(
      connections_->reader,
      "SELECT MAX(bytes) FROM line WHERE owner IN (?, 'unknown') AND idempotency_key = ?");
  return row.bind(owner).bind(key).step() ? row.integer(0) : 0;
}

int64_t Journal::bytes_of_conversation(const std::string& id) const {
  const std::lock_guard lock(connections_->reading);
  return conversation_bytes(connections_->reader, id);
}

std::vector<JournalLine> Journal::unfinished() const {
  const std::lock_guard lock(connections_->reading);
  Statement rows(connections_->reader,
                 (std::string(kSelectLines) + "WHERE outcome IS NULL ORDER BY number").c_str());
  std::vector<JournalLine> lines;
  while (rows.step()) {
    try {
      lines.push_back(read_line(rows));
    } catch (const sqlite::SqliteError&) {
      throw;
    } catch (const Error&) {  // one that was changed: said when the journal was opened
    }
  }
  return lines;
}

std::vector<JournalLine> Journal::all() const {
  const std::lock_guard lock(connections_->reading);
  Statement rows(connections_->reader, (std::string(kSelectLines) + "ORDER BY number").c_str());
  std::vector<JournalLine> lines;
  while (rows.step()) lines.push_back(read_line(rows));
  return lines;
}

std::string Journal::check_integrity() const {
  const std::lock_guard lock(connections_->reading);
  const std::string wrong = wrong_pages(connections_->reader);
  return wrong.empty() ? changed_lines(connections_->reader) : wrong;
}

}  // namespace invar::server
