#include "journal_connections.h"

#include "lines.h"
#include "log_check.h"

namespace invar::server {

namespace {

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

}  // namespace

void report_damage(const std::string& damage, const JournalOptions& options) {
  if (damage.empty()) return;
  if (!options.accept_loss)
    fail("{}; --journal-accept-loss goes on without them, and takes their idempotency keys for new",
         damage);
  fmt::print(stderr, "invar: warning: {}\n", damage);
}

std::string wrong_pages(sqlite::Connection& in) {
  const std::string found = in.query_text("PRAGMA integrity_check(1)");
  return found == "ok" ? "" : found;
}

Journal::Connections::Connections(const std::string& path, const JournalOptions& options)
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

void Journal::Connections::prepare(const std::string& path, const JournalOptions& options) {
  const std::string wrong = wrong_pages(writer);
  if (!wrong.empty())
    fail(
        "{}: the file was changed and cannot be read as it was written ({}); restore it, or "
        "begin another",
        path, wrong);
  if (writer.query_text("PRAGMA journal_mode = WAL") != "wal")
    fail("{}: expected a file system with a write-ahead log, found none", path);
  writer.execute(options.sync == JournalOptions::Sync::power_loss ? "PRAGMA synchronous = FULL"
                                                                  : "PRAGMA synchronous = NORMAL");
  // Cut off when it begins again: what stands in it is of one log (log_check.cc).
  writer.execute("PRAGMA journal_size_limit = 0");
  prepare_schema(writer, path);
  if (const std::string changed = changed_lines(writer); !changed.empty())
    report_damage(fmt::format("{}: {}", path, changed), options);
  checkpointer.query_integer("PRAGMA schema_version");  // reading opens the log
}

}  // namespace invar::server
