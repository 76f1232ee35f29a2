// Opens a journal, and writes what is asked of it in the order in which it is asked.
#include "journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "journal_connections.h"
#include "lines.h"
#include "log_check.h"

namespace invar::server {

namespace {

using sqlite::Connection;

constexpr int kLongWal = 1000;  // pages: past this the log is copied into the file

int lock_of(const std::string& path) {
  const std::string name = path + ".lock";
  const int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) fail("{}: cannot be opened: {}", name, std::strerror(errno));
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  ::close(file);
  fail("{}: another process has this journal open", path);
}

}  // namespace

struct Journal::Operation {
  enum class Kind {
    admit,
    end,
    keep,
    settle_cached,
    forget,
    forget_one,
    keep_adapter,
    forget_adapter,
    nothing
  };
  Kind kind = Kind::admit;
  JournalEntry entry;        // admit; of an end and of what is kept only the id
  std::optional<Said> said;  // admit
  std::string output;        // keep
  KeptAdapter adapter;       // keep_adapter; of one to forget only the name
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
    } else if (kind == Kind::keep_adapter) {
      server::keep_adapter(to.writer, adapter);
    } else if (kind == Kind::forget_adapter) {
      server::forget_adapter(to.writer, adapter.name);
    }
  }
};

Journal::Journal(const std::string& path, const JournalOptions& options) : lock_(lock_of(path)) {
  try {
    report_damage(lost_frames(path + "-wal"), options);
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

void Journal::write(std::unique_ptr<Operation> operation) {
  std::promise<std::string> done;
  operation->done = [&](const std::string& error) { done.set_value(error); };
  enqueue(std::move(operation));
  if (const std::string error = done.get_future().get(); !error.empty()) throw Error(error);
}

void Journal::admit(JournalEntry entry, std::optional<Said> said) {
  auto operation = std::make_unique<Operation>();
  operation->entry = std::move(entry);
  operation->said = std::move(said);
  write(std::move(operation));
}

void Journal::end_and_wait(const std::string& id, Outcome outcome) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::end;
  operation->entry.id = id;
  operation->outcome = outcome;
  write(std::move(operation));
}

void Journal::forget_and_wait(const std::string& id) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::forget_one;
  operation->entry.id = id;
  write(std::move(operation));
}

void Journal::keep_adapter(KeptAdapter adapter) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::keep_adapter;
  operation->adapter = std::move(adapter);
  write(std::move(operation));
}

void Journal::forget_adapter(const std::string& name) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::forget_adapter;
  operation->adapter.name = name;
  write(std::move(operation));
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

// Writes one transaction. A fault of one line alone (an id that is there) fails that line; a fault
// of the file (no room) fails all.
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
    // Pages that it cannot move now (no room, a reader) move next time.
    sqlite3_wal_checkpoint_v2(connections_->checkpointer.get(), nullptr, SQLITE_CHECKPOINT_PASSIVE,
                              nullptr, nullptr);
  }
}

}  // namespace invar::server
