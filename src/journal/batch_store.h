// Files that clients have sent, and batches of requests, line by line with their results: in a file
// of SQLite's beside the journal. Lines that have been written survive the end of the process.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace invar::server {

struct StoredFile {
  std::string id, owner, name, purpose;
  int64_t created = 0, bytes = 0;
};

// A batch of requests to one endpoint.
struct Batch {
  enum class Status { in_progress, cancelling, completed, cancelled, failed };
  std::string id, owner, endpoint, input_file, window;
  std::string metadata, errors;  // JSON; empty: none
  int64_t created = 0, ended = 0;
  Status status = Status::in_progress;
  std::string output_file, error_file;  // empty: none
  int64_t lines = 0, completed = 0, failed = 0;

  bool is_over() const { return status != Status::in_progress && status != Status::cancelling; }
};

struct BatchLine {
  int64_t number = 0;
  std::string custom_id, body;
};

// An owner has as much as it may.
class StoreFull : public Error {
 public:
  using Error::Error;
};

// From any thread. Every function throws Error when the file cannot be read or written.
class BatchStore {
 public:
  // `most_bytes` bounds the files and lines of each owner.
  BatchStore(const std::string& path, int64_t most_bytes);
  ~BatchStore();

  void add_file(const StoredFile& file, std::string_view content);
  std::optional<StoredFile> find_file(const std::string& id) const;
  std::vector<StoredFile> files(const std::string& owner) const;
  void remove_file(const std::string& id);
  // The content of a file that was sent; of one that a batch has made, its lines behind line
  // `after`, about so many bytes: `after` becomes the last of them, or -1 at the end.
  std::string content(const std::string& id, int64_t& after, size_t bytes) const;

  void add_batch(const Batch& batch, const std::vector<BatchLine>& lines);
  std::optional<Batch> find_batch(const std::string& id) const;
  // The newest first.
  std::vector<Batch> batches(const std::string& owner, size_t most) const;
  // In the order in which they came.
  std::vector<Batch> unfinished() const;
  // The first line behind line `after` that has no answer.
  std::optional<BatchLine> next_line(const std::string& batch, int64_t after) const;
  // `text`: the line of the file of answers, or of that of errors.
  void add_answer(const std::string& batch, int64_t line, bool is_error, std::string_view text);
  void set_status(const std::string& batch, Batch::Status status);
  // Its lines become files under these ids.
  void end_batch(const std::string& batch, Batch::Status status, int64_t now,
                 const std::string& output_file, const std::string& error_file);
  // Forgets files and batches that were made before this time, unless their batch goes on.
  void forget_before(int64_t time);

 private:
  struct Connections;
  void check_room(const std::string& owner, int64_t bytes) const;

  const int64_t most_bytes_;
  mutable std::mutex mutex_;
  std::unique_ptr<Connections> in_;
};

const char* name_of(Batch::Status status);

}  // namespace invar::server
