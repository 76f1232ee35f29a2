// The journal: one line for each admitted request, with everything that its answer's bytes depend
// on, and one mark when it has ended. Nothing is written per token: an answer that a crash cut off
// is computed again.
//
// A file of SQLite in WAL mode. By default (synchronous=NORMAL) a line survives the death of every
// process; Sync::power_loss waits for the disk too. A tail that was torn off is not there for
// SQLite, whose frames carry checksums: lines before it are whole. Lines carry a digest of their
// own, so that one whose bytes were changed is never taken for what was asked.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/sha256.h"
#include "base/shared.h"
#include "conversations.h"
#include "retention.h"
#include "sampling/params.h"

namespace invar::server {

// The inputs that an answer's bytes depend on.
struct JournalEntry {
  std::string id;               // of the answer; unique
  int64_t created = 0;          // seconds since 1970; part of the answer
  std::string owner;            // of the answer: a digest of the API key; empty: none was needed
  std::string idempotency_key;  // unique for its owner; empty: none
  std::string endpoint;         // "/v1/chat/completions"
  // The part of the body that the answer needs beside prompts and parameters: its framing and its
  // constraint.
  std::string request;
  Digest body{};                                      // of all of it: the same request again
  std::vector<Shared<std::vector<int32_t>>> prompts;  // tokens; a body may hold several prompts
  SamplingParams params;                              // with the seed, drawn or given
  std::string arithmetic;                             // the identity
  Digest model{};  // digest of what answers depend on beside these

  bool operator==(const JournalEntry&) const = default;
};

enum class Outcome { finished, aborted, failed };

// An adapter that is served by name until somebody says otherwise.
struct KeptAdapter {
  std::string name, directory;
  Digest digest{};  // numerics 2.4

  bool operator==(const KeptAdapter&) const = default;
};

// The owner of lines that were written before lines had owners.
inline constexpr const char* kUnknownOwner = "unknown";

struct JournalLine {
  int64_t number = 0;  // in the order of admission, from 1
  JournalEntry entry;
  std::optional<Outcome> outcome;  // none: it has not ended
  std::optional<int64_t> cached;   // Journal::settle_cached; none: it never was
};

struct JournalOptions {
  enum class Sync { process_death, power_loss };
  Sync sync = Sync::process_death;
  // Goes on where lines at the end of the log were lost or lines were changed: their idempotency
  // keys are new again.
  bool accept_loss = false;
  // Does not go on where the log was cut off or deleted, either, and its lines with it. A loss of
  // power may cut it off (Sync::process_death), so that otherwise it is only said.
  bool strict = false;
  Quota quota;
};

class Journal {
 public:
  // Empty when it was done, else a sentence. Called from the journal's thread.
  using Done = std::function<void(const std::string& error)>;

  // Opens or makes the file and looks through all of it. Throws Error when it is not a journal,
  // another process has it, or something that was written is lost; then nothing in it has changed.
  explicit Journal(const std::string& path, const JournalOptions& options = {});
  ~Journal();  // writes what is waiting

  // Writes a line; what waits is written together. A line whose id or key is there already is
  // refused, alone; with a full disk all of a group are, and the journal stays usable. Lines that
  // have ended make room for it, where a quota says so. `said`: of a response that may be gone on
  // from.
  void admit(JournalEntry entry, std::optional<Said> said, Done done);
  // Marks the end of a line, once. With a full disk `done` hears of it and the mark is written when
  // there is room again: a crash before that only has the answer computed again.
  void end(const std::string& id, Outcome outcome, Done done = {});
  // Keeps the response's output, a JSON list: from now on others may go on from it. Written in the
  // order of the calls: before the end of its line where it is called before.
  void keep(const std::string& id, std::string output);
  // How many tokens of its prompts the prefix cache had: the first number that is written for a
  // line holds. `done` hears of that one; of 0 where none could be written.
  void settle_cached(const std::string& id, int64_t tokens, std::function<void(int64_t)> done);
  // The same, waiting.
  int64_t settle_cached(const std::string& id, int64_t tokens);
  // Forgets lines that have ended and were created before this second.
  void forget_before(int64_t created, Done done = {});
  // The same, waiting; each throws Error.
  void admit(JournalEntry entry, std::optional<Said> said = {});
  void end_and_wait(const std::string& id, Outcome outcome);
  // One line that has ended; nothing where there is none.
  void forget_and_wait(const std::string& id);
  // Keeps the adapter, in place of another of its name.
  void keep_adapter(KeptAdapter adapter);
  // Forgets the adapter of that name; nothing where there is none.
  void forget_adapter(const std::string& name);
  // Waits until everything that was asked for before is written, or could not be.
  void wait();

  // From any thread; each throws Error when the file cannot be read.
  std::optional<JournalLine> find(const std::string& id) const;
  // The owner's line, or else one of an unknown owner.
  std::optional<JournalLine> find_key(const std::string& owner,
                                      const std::string& idempotency_key) const;
  std::optional<Conversation> find_conversation(const std::string& id) const;
  // The response's own input (Said::input); nothing where that was not stored.
  std::optional<std::string> find_input(const std::string& id) const;
  // The output (Said); nothing where that was not stored, or is not yet.
  std::optional<std::string> find_output(const std::string& id) const;
  // The bytes to read for a line, or a conversation; 0: there is none.
  int64_t bytes_of_line(const std::string& id) const;
  int64_t bytes_of_key(const std::string& owner, const std::string& idempotency_key) const;
  int64_t bytes_of_conversation(const std::string& id) const;
  std::vector<JournalLine> unfinished() const;
  std::vector<JournalLine> all() const;
  std::vector<KeptAdapter> adapters() const;  // ascending by name
  // Empty when SQLite finds the file whole and each line is what was written, else what is wrong.
  std::string check_integrity() const;

 private:
  struct Operation;
  struct Connections;

  void enqueue(std::unique_ptr<Operation> operation);
  // Waits until it is written. Throws Error where it could not be.
  void write(std::unique_ptr<Operation> operation);
  void write_loop();
  void write_group(std::deque<std::unique_ptr<Operation>>& group);
  void checkpoint_loop();

  int lock_ = -1;  // held while the journal is open
  std::unique_ptr<Connections> connections_;

  std::mutex mutex_;
  std::condition_variable queued_, wal_is_long_;
  std::deque<std::unique_ptr<Operation>> queue_;
  bool stopping_ = false, checkpoint_wanted_ = false;
  std::jthread writer_, checkpointer_;
};

}  // namespace invar::server
