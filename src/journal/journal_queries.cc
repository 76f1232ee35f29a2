// Reads from a journal, by the connection of readers.
#include "journal_connections.h"
#include "lines.h"
#include "log_check.h"

namespace invar::server {

using sqlite::Statement;

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

std::optional<std::string> Journal::find_output(const std::string& id) const {
  const std::lock_guard lock(connections_->reading);
  Statement row(connections_->reader, "SELECT output FROM said WHERE id = ?");
  const bool is_there = row.bind(id).step() && !row.is_null(0);
  return is_there ? std::optional<std::string>(row.bytes(0)) : std::nullopt;
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

std::vector<KeptAdapter> Journal::adapters() const {
  const std::lock_guard lock(connections_->reading);
  return read_adapters(connections_->reader);
}

std::string Journal::check_integrity() const {
  const std::lock_guard lock(connections_->reading);
  const std::string wrong = wrong_pages(connections_->reader);
  return wrong.empty() ? changed_lines(connections_->reader) : wrong;
}

}  // namespace invar::server
