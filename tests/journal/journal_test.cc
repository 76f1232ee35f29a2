// The journal under everything that can befall it: kill -9 while it writes, a full disk, a torn
// tail, a second process.
#include "journal/journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/input_file.h"
#include "journal/sqlite.h"
#include "journal/wire.h"

// In place of the C library's: SQLite's calls are counted.
static std::atomic<int> syncs = 0;

extern "C" int fdatasync(int file) {
  ++syncs;
  return static_cast<int>(::syscall(SYS_fdatasync, file));
}
extern "C" int fsync(int file) {
  ++syncs;
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace invar::server {
namespace {

namespace fs = std::filesystem;

class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    std::string name = (fs::temp_directory_path() / "invar-journal-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw Error("no temporary directory");
    directory_ = name;
  }
  ~JournalTest() override { fs::remove_all(directory_); }
  std::string path(const char* name = "journal") const { return (directory_ / name).string(); }

  fs::path directory_;
};

// The entry of a number, so that what was read back is known. Another seed: another entry.
JournalEntry entry_of(int64_t number, uint64_t seed = 7) {
  std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>(number));
  JournalEntry e;
  e.id = "chatcmpl-" + std::to_string(number);
  e.created = 1'700'000'000 + number;
  e.owner = "a";
  if (number % 3 == 0) e.idempotency_key = "key-" + std::to_string(number);
  e.endpoint = "/v1/chat/completions";
  e.request = "{\"user\":\"" + std::string(random() % 3000, 'x') + "\"}";
  e.body = sha256(std::as_bytes(std::span(e.request)));
  e.prompts.resize(1 + random() % 2);
  for (auto& prompt : e.prompts)
    for (size_t i = 0; i < random() % 500; ++i)
      prompt.edit().push_back(static_cast<int32_t>(random() % 32000));
  e.params.seed = random();
  e.params.temperature = std::generate_canonical<double, 53>(random);
  e.params.logit_bias = {{5, 0.1}, {9, -1.0 / 3}};
  e.params.stop_token_ids = {1, 2};
  e.params.max_tokens = 64;
  if (number % 2) e.params.logprobs = 3;
  e.arithmetic = "invar-1/portable/bf16/row8.8";
  e.model.fill(static_cast<uint8_t>(random()));
  return e;
}

std::string error_of(std::function<void()> action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(JournalTest, GivesBackEveryFieldOfALine) {
  JournalEntry entry = entry_of(3);
  entry.params.top_p = 0.1f;  // a double that a float's shortest text would change
  entry.params.min_p = 5e-324;
  entry.params.ignore_eos = true;
  entry.params.prompt_logprobs = 0;
  entry.params.logprobs_mode = LogprobsMode::raw_logits;
  entry.params.allowed_token_ids = {0, 7, 31999};
  entry.params.bad_words = {{5}, {6, 7, 8}};
  {
    Journal journal(path());
    journal.admit(entry);
    journal.admit(entry_of(4));
    journal.end_and_wait(entry.id, Outcome::aborted);
  }
  const Journal journal(path());
  const auto line = journal.find(entry.id);
  ASSERT_TRUE(line);
  EXPECT_EQ(line->entry, entry);
  EXPECT_EQ(line->outcome, Outcome::aborted);
  EXPECT_EQ(journal.find_key("a", "key-3")->number, line->number);
  EXPECT_FALSE(journal.find_key("a", "key-4"));
  EXPECT_FALSE(journal.find_key("b", "key-3"));  // another owner's
  ASSERT_EQ(journal.unfinished().size(), 1u);
  EXPECT_EQ(journal.unfinished()[0].entry, entry_of(4));
  EXPECT_NE(journal.unfinished()[0].entry, entry_of(4, 8));  // the comparison can fail
}

// Against the end of a process a line is written when the system has it; against the loss of power
// when the disk has it.
TEST_F(JournalTest, ALineIsOnTheDiskWhereThatIsAskedFor) {
  constexpr int kLines = 8;
  const auto syncs_of = [&](JournalOptions::Sync sync, const char* name) {
    Journal journal(path(name), {.sync = sync});
    const int before = syncs;
    for (int i = 0; i < kLines; ++i) journal.admit(entry_of(i));
    return syncs - before;
  };
  EXPECT_GE(syncs_of(JournalOptions::Sync::power_loss, "power"), kLines);
  EXPECT_LE(syncs_of(JournalOptions::Sync::process_death, "process"), 1);
}

TEST_F(JournalTest, RefusesALineTwiceAndAnEndTwice) {
  Journal journal(path());
  journal.admit(entry_of(3));
  EXPECT_EQ(error_of([&] { journal.admit(entry_of(3)); }),
            "journal: a line chatcmpl-3 or one with the idempotency key key-3 is there already");
  JournalEntry other = entry_of(4);
  other.idempotency_key = "key-3";
  EXPECT_NE(error_of([&] { journal.admit(other); }), "");
  other.owner = "b";  // whose keys are its own
  journal.admit(other);
  journal.end_and_wait("chatcmpl-3", Outcome::finished);
  EXPECT_EQ(error_of([&] { journal.end_and_wait("chatcmpl-3", Outcome::failed); }),
            "journal: expected a line chatcmpl-3 that has not ended, found none");
  EXPECT_EQ(journal.find("chatcmpl-3")->outcome, Outcome::finished);
  EXPECT_EQ(journal.all().size(), 2u);
}

TEST_F(JournalTest, BelongsToOneProcessAndIsNoOtherFile) {
  std::ofstream(path("text")) << "This is a text and no database, however long one makes it. "
                              << std::string(2000, '.');
  EXPECT_NE(error_of([&] { Journal journal(path("text")); }).find("text: "), std::string::npos);
  EXPECT_NE(error_of([&] { Journal journal(path("no/such/directory")); }), "");
  const Journal journal(path());
  EXPECT_EQ(error_of([&] { Journal second(path()); }),
            path() + ": another process has this journal open");
}

TEST_F(JournalTest, ForgetsOldLinesThatHaveEnded) {
  Journal journal(path());
  for (int i = 1; i <= 4; ++i) journal.admit(entry_of(i));
  for (int i : {1, 3, 4}) journal.end_and_wait(entry_of(i).id, Outcome::finished);
  std::promise<void> done;
  journal.forget_before(entry_of(4).created, [&](const std::string&) { done.set_value(); });
  done.get_future().wait();
  std::vector<std::string> left;
  for (const JournalLine& line : journal.all()) left.push_back(line.entry.id);
  EXPECT_EQ(left, (std::vector<std::string>{"chatcmpl-2", "chatcmpl-4"}));
}

TEST_F(JournalTest, TheFirstNumberOfCachedTokensHolds) {
  {
    Journal journal(path());
    for (int i = 1; i <= 4; ++i) journal.admit(entry_of(i));
    EXPECT_EQ(journal.settle_cached(entry_of(1).id, 64), 64);
    EXPECT_EQ(journal.settle_cached(entry_of(1).id, 128), 64);
    EXPECT_EQ(journal.settle_cached(entry_of(2).id, 0), 0);
    EXPECT_EQ(journal.settle_cached(entry_of(2).id, 64), 0);
    EXPECT_EQ(journal.settle_cached(entry_of(3).id, 32), 32);
    EXPECT_EQ(journal.settle_cached("nobody", 64), 0);  // there is no line to write it beside
    journal.end_and_wait(entry_of(1).id, Outcome::finished);
    EXPECT_EQ(journal.check_integrity(), "");
  }
  {
    Journal journal(path());
    EXPECT_EQ(journal.find(entry_of(1).id).value().cached, 64);
    EXPECT_EQ(journal.find_key("a", "key-3").value().cached, 32);
    EXPECT_EQ(journal.find(entry_of(2).id).value().cached, 0);
    EXPECT_EQ(journal.unfinished().back().cached, std::nullopt);
    journal.forget_and_wait(entry_of(1).id);
  }
  EXPECT_EQ(sqlite::Connection(path()).query_integer("SELECT COUNT(*) FROM cached"), 2);
}

// What version 3 wrote, which knew of no cached tokens.
TEST_F(JournalTest, LinesOfTheThirdVersionAreKept) {
  {
    Journal journal(path());
    journal.admit(entry_of(1));
  }
  sqlite::Connection(path()).execute(
      "BEGIN; DROP TRIGGER line_is_gone; DROP TABLE cached; PRAGMA user_version = 3; COMMIT;");
  Journal journal(path());
  EXPECT_EQ(journal.all()[0].entry, entry_of(1));
  EXPECT_EQ(journal.all()[0].cached, std::nullopt);
  EXPECT_EQ(journal.settle_cached(entry_of(1).id, 64), 64);
}

TEST_F(JournalTest, AdaptersAreKeptByName) {
  const KeptAdapter first{"a", "first", {1}}, other{"a", "other", {2}}, second{"b", "second", {3}};
  {
    Journal journal(path());
    EXPECT_TRUE(journal.adapters().empty());
    journal.forget_adapter("none");
    journal.keep_adapter(second);
    journal.keep_adapter(first);
    EXPECT_EQ(journal.adapters(), (std::vector{first, second}));
    journal.keep_adapter(other);
    journal.forget_adapter("none");
  }
  Journal journal(path());
  EXPECT_EQ(journal.adapters(), (std::vector{other, second}));
  journal.forget_adapter("a");
  EXPECT_EQ(journal.adapters(), (std::vector{second}));
}

// The items of a conversation, or why there are none.
std::string items_of(const Journal& journal, int i) {
  const auto found = journal.find_conversation(entry_of(i).id);
  return found ? found->has_ended ? found->items : "unfinished" : "none";
}

// Answers one response that goes on from the one before it.
void say(Journal& journal, int i, int previous, const std::string& input = "[1]") {
  const std::string id = previous > 0 ? entry_of(previous).id : "";
  journal.admit(entry_of(i), Said{.previous = id, .input = input});
  journal.keep(entry_of(i).id, "[2,3]");
  journal.end_and_wait(entry_of(i).id, Outcome::finished);
}

TEST_F(JournalTest, KeepsConversationsAsLongAsOneGoesOnFromThem) {
  {
    Journal journal(path());
    journal.admit(entry_of(1), Said{.previous = "", .input = "[0]"});
    EXPECT_EQ(items_of(journal, 1), "unfinished");
    journal.keep(entry_of(1).id, "[]");
    journal.end_and_wait(entry_of(1).id, Outcome::finished);  // written after what is kept
    say(journal, 2, 1);
    say(journal, 3, 2);
    say(journal, 4, 1);
    journal.keep(entry_of(3).id, "[4]");  // its first output stays
    journal.wait();
    EXPECT_EQ(items_of(journal, 3), "[0,1,2,3,1,2,3]");
    EXPECT_EQ(journal.bytes_of_conversation(entry_of(3).id), 3 + 2 + 2 * (3 + 5));
  }
  Journal journal(path());
  journal.forget_before(entry_of(3).created);
  journal.wait();
  EXPECT_EQ(items_of(journal, 3), "[0,1,2,3,1,2,3]");  // though the line of 2 is gone
  EXPECT_FALSE(journal.find(entry_of(2).id));
  journal.forget_before(entry_of(4).created);
  journal.wait();
  EXPECT_EQ(items_of(journal, 2), "none");
  EXPECT_EQ(items_of(journal, 4), "[0,1,2,3]");
  journal.forget_before(entry_of(5).created);
  journal.wait();
  EXPECT_EQ(items_of(journal, 1), "none");
}

// Each one that goes on stores its own part.
TEST_F(JournalTest, AContinuationStoresNothingTwice) {
  Journal journal(path());
  const std::string large = "[\"" + std::string(1 << 20, 'x') + "\"]";
  say(journal, 1, 0, large);
  journal.wait();
  const auto before = fs::file_size(path() + "-wal") + fs::file_size(path());
  for (int i = 2; i <= 25; ++i) say(journal, i, 1);
  journal.wait();
  // Stored again by each it would be 24 MiB. SQLite's log, which is cut at 4 MiB, may hold the
  // first line beside the database, whenever it is copied there.
  EXPECT_LT(fs::file_size(path() + "-wal") + fs::file_size(path()) - before, 6u << 20);
  EXPECT_EQ(items_of(journal, 25).size(), large.size() + std::string(",2,3,1,2,3").size());
}

TEST_F(JournalTest, TheOldestThatHaveEndedMakeRoom) {
  const auto of = [](int i, const char* owner) {
    JournalEntry entry = entry_of(i);
    entry.owner = owner;
    entry.request.assign(10'000, 'x');
    return entry;
  };
  const JournalOptions options{.quota = {.all = 100'000, .of_owner = 60'000}};
  {
    Journal journal(path(), options);
    journal.admit(of(1, "a"));  // does not end
    for (int i = 2; i <= 20; ++i) {
      journal.admit(of(i, "a"));
      journal.end_and_wait(of(i, "a").id, Outcome::finished);
    }
    for (int i = 21; i <= 23; ++i) journal.admit(of(i, "b"));
    EXPECT_TRUE(journal.find(of(1, "a").id));
    EXPECT_FALSE(journal.find(of(2, "a").id));
    EXPECT_TRUE(journal.find(of(20, "a").id));
    EXPECT_LE(journal.all().size(), 9u);
    EXPECT_GE(journal.all().size(), 6u);
  }
  Journal journal(path(), options);  // knows what is there
  for (int i = 24; i <= 25; ++i) journal.admit(of(i, "b"));
  EXPECT_NE(error_of([&] {
              for (int i = 26; i <= 27; ++i) journal.admit(of(i, "b"));
            }).find("of one key's requests that have not ended"),
            std::string::npos);
  journal.admit(of(30, "c"));  // takes from the oldest of all
  EXPECT_LE(journal.all().size(), 9u);
  EXPECT_TRUE(journal.find(of(1, "a").id));
  EXPECT_TRUE(journal.find(of(21, "b").id));
  for (int i = 31; i <= 32; ++i) journal.admit(of(i, "c"));
  EXPECT_NE(error_of([&] { journal.admit(of(40, "d")); }).find("bytes of requests that have not"),
            std::string::npos);
  EXPECT_EQ(journal.check_integrity(), "");
}

// The order of the bytes follows from the list of fields: this is what version 3 always wrote.
TEST(WireTest, ItsBytesAreThoseOfItsVersion) {
  SamplingParams params{.n = 3,
                        .temperature = 0.7,
                        .top_p = 0.9,
                        .top_k = 40,
                        .min_p = 0.05,
                        .repetition_penalty = 1.1,
                        .presence_penalty = -0.5,
                        .frequency_penalty = 0.25,
                        .logit_bias = {{5, 0.1}, {9, -1.0 / 3}},
                        .max_tokens = 64,
                        .min_tokens = 2,
                        .stop_token_ids = {1, 2},
                        .allowed_token_ids = {0, 7, 31999},
                        .bad_words = {{5}, {6, 7, 8}},
                        .ignore_eos = true,
                        .seed = 0xfedcba9876543210u,
                        .logprobs = 3,
                        .logprobs_mode = LogprobsMode::raw_logits};
  const auto digest_of = [](const SamplingParams& one) {
    ByteWriter out;
    put_params(out, one);
    const std::string bytes = out.take();
    return to_hex(sha256(std::as_bytes(std::span(bytes))));
  };
  const std::string written = "ee6a30a257f430ed340d9f0953bb477d6a188cc1b08785787a788f2d5fe0d223";
  EXPECT_EQ(digest_of(params), written);
  std::swap(params.top_p, params.min_p);
  EXPECT_NE(digest_of(params), written);
}

TEST(WireTest, ReadsWhatEarlierVersionsWrote) {
  ByteWriter out;
  put_params(out, entry_of(1).params);
  std::string bytes = out.take();
  const auto expect_read = [&](char version, size_t less) {
    bytes.resize(bytes.size() - less);
    bytes[0] = version;
    ByteReader in(bytes, "parameters");
    EXPECT_EQ(get_params(in), entry_of(1).params);
    in.expect_end();
  };
  expect_read(2, sizeof(uint8_t));       // the mode of log-probabilities
  expect_read(1, 2 * sizeof(uint64_t));  // the counts of two lists
}

TEST(WireTest, RefusesBytesThatAreCutOrChanged) {
  SamplingParams params = entry_of(1).params;
  params.allowed_token_ids = {3, 4};
  params.bad_words = {{5}, {6, 7, 8}};
  params.logprobs_mode = LogprobsMode::processed_logits;
  ByteWriter out;
  put_params(out, params);
  const std::string bytes = out.take();
  for (size_t size = 0; size < bytes.size(); ++size) {
    ByteReader in(std::string_view(bytes).substr(0, size), "parameters");
    EXPECT_NE(error_of([&] { get_params(in); }), "") << size;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {  // no crash and no enormous memory, whatever the bytes
    std::string changed = bytes;
    changed[random() % changed.size()] = static_cast<char>(random());
    ByteReader in(changed, "parameters");
    error_of([&] { get_params(in); });
  }
}

// Writes lines from number `first` on, up to eight at a time, ends every second one, and says
// numbers on `out` when they are done: n for a line, -n for its end.
[[noreturn]] void write_until_killed(const std::string& path, int64_t first, int out) {
  Journal journal(path);
  const auto say = [out](int64_t number) {
    return [out, number](const std::string& error) {
      if (!error.empty()) ::_exit(3);
      if (::write(out, &number, sizeof number) != sizeof number) ::_exit(4);
    };
  };
  std::atomic<int> waiting = 0;
  for (int64_t number = first;; ++number) {
    while (waiting >= 8) std::this_thread::yield();
    ++waiting;
    journal.admit(entry_of(number), std::nullopt,
                  [&, done = say(number), number](const std::string& error) {
                    done(error);
                    --waiting;
                    if (number % 2 == 0)
                      journal.end(entry_of(number).id, Outcome::finished, say(-number));
                  });
  }
}

// What the writer said before it was killed.
std::vector<int64_t> said_before_kill(const std::string& path, int64_t first,
                                      std::chrono::microseconds after) {
  int ends[2];
  if (::pipe(ends) != 0) throw Error("no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    write_until_killed(path, first, ends[1]);
  }
  ::close(ends[1]);
  std::vector<int64_t> said;
  int64_t number;
  if (::read(ends[0], &number, sizeof number) == sizeof number) said.push_back(number);
  std::this_thread::sleep_for(after);
  ::kill(child, SIGKILL);
  while (::read(ends[0], &number, sizeof number) == sizeof number) said.push_back(number);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  return said;
}

TEST_F(JournalTest, LosesAndDoublesNothingWhenKilledWhileWriting) {
  std::mt19937 random(std::random_device{}());
  std::set<int64_t> said;
  int64_t next = 1;
  for (int kill = 0; kill < 20; ++kill) {
    for (const int64_t number :
         said_before_kill(path(), next, std::chrono::microseconds(random() % 30'000)))
      EXPECT_TRUE(said.insert(number).second) << number;
    const Journal journal(path());
    const std::vector<JournalLine> lines = journal.all();
    // Every number from 1 on, once: the last may have been written without having been said.
    for (size_t i = 0; i < lines.size(); ++i) {
      const int64_t number = static_cast<int64_t>(i) + 1;
      EXPECT_EQ(lines[i].entry, entry_of(number)) << number;
      EXPECT_TRUE(!said.contains(-number) || lines[i].outcome == Outcome::finished) << number;
      EXPECT_TRUE(number % 2 == 0 || !lines[i].outcome) << number;
    }
    next = static_cast<int64_t>(lines.size()) + 1;
    EXPECT_LT(said.empty() ? 0 : *said.rbegin(), next);
    EXPECT_EQ(journal.check_integrity(), "");
  }
  EXPECT_GT(next, 100);
}

// A line that only the dead writer's memory knew is missed: what the test above would see.
TEST_F(JournalTest, AWriterWithoutAJournalIsFoundOut) {
  constexpr int kLines = 5;  // few: the log has not yet been moved to the file
  Journal journal(path());
  for (int i = 1; i <= kLines; ++i) journal.admit(entry_of(i));
  fs::copy_file(path(), path("without"));  // without the log, as if lines had stayed in the process
  EXPECT_LT(std::ssize(Journal(path("without")).all()), kLines);
}

// What a crash leaves of an open journal: the file and the log.
void copy_as_after_a_crash(const fs::path& from, const fs::path& to) {
  for (const char* tail : {"", "-wal"})
    fs::copy_file(from.string() + tail, to.string() + tail, fs::copy_options::overwrite_existing);
}

TEST_F(JournalTest, KeepsWholeLinesBeforeATornTail) {
  constexpr int kLines = 12;
  Journal journal(path());
  for (int i = 1; i <= kLines; ++i) journal.admit(entry_of(i));
  const auto size = fs::file_size(path("journal-wal"));
  std::mt19937 random(3);
  size_t fewest = kLines, most = 0;
  for (int round = 0; round < 60; ++round) {
    copy_as_after_a_crash(path(), path("torn"));
    const uintmax_t at = round == 0 ? size : random() % size;
    if (round % 2 == 0) {
      fs::resize_file(path("torn-wal"), at);
    } else {  // a sector that was never written
      std::fstream log(path("torn-wal"), std::ios::in | std::ios::out | std::ios::binary);
      log.seekp(static_cast<std::streamoff>(at));
      const std::string zeros(std::min<uintmax_t>(512, size - at), '\0');
      log.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
    }
    std::vector<JournalLine> lines;
    const std::string refused = error_of([&] { Journal torn(path("torn")); });
    {
      Journal torn(path("torn"), {.accept_loss = true});
      lines = torn.all();
      for (size_t i = 0; i < lines.size(); ++i)
        EXPECT_EQ(lines[i].entry, entry_of(static_cast<int64_t>(i) + 1));
      EXPECT_EQ(torn.check_integrity(), "");
      // Cut off as a killed process leaves it; or changed, and said so if that lost a line.
      const bool loses = round % 2 == 1 && lines.size() < kLines;
      EXPECT_EQ(!refused.empty(), loses) << refused;
      torn.admit(entry_of(1000 + round));  // it goes on
    }
    EXPECT_EQ(Journal(path("torn")).all().size(), lines.size() + 1);
    fewest = std::min(fewest, lines.size());
    most = std::max(most, lines.size());
    fs::remove(path("torn"));
  }
  EXPECT_EQ(most, static_cast<size_t>(kLines));
  EXPECT_LT(fewest, static_cast<size_t>(kLines));  // tails were torn
}

// SQLite takes a log that ends early, or is not there, for all that was written.
TEST_F(JournalTest, SaysHowManyLinesACutLogHasLost) {
  constexpr size_t kLines = 40;
  Journal journal(path());
  for (size_t i = 1; i <= kLines; ++i) journal.admit(entry_of(static_cast<int64_t>(i)));
  journal.forget_and_wait(entry_of(2).id);  // which has not ended, and stays
  journal.end_and_wait(entry_of(1).id, Outcome::finished);
  journal.forget_and_wait(entry_of(1).id);  // is not lost
  const auto size = fs::file_size(path("journal-wal"));
  std::mt19937 random(11);
  int lossy = 0;
  for (int round = 0; round <= 20; ++round) {
    copy_as_after_a_crash(path(), path("cut"));
    const auto unmarked = [&] { fs::remove(path("cut.mark")); };
    unmarked();
    EXPECT_EQ(error_of([&] { Journal whole(path("cut"), {.strict = true}); }), "");
    copy_as_after_a_crash(path(), path("cut"));
    fs::copy_file(path("journal.mark"), path("cut.mark"), fs::copy_options::overwrite_existing);
    if (round == 0)
      fs::remove(path("cut-wal"));
    else
      fs::resize_file(path("cut-wal"), round == 1 ? size : random() % size);
    const std::string refused = error_of([&] { Journal cut(path("cut"), {.strict = true}); });
    testing::internal::CaptureStderr();
    size_t left = 0;
    {
      const Journal cut(path("cut"));
      for (const JournalLine& line : cut.all()) left = static_cast<size_t>(line.number);
    }
    const std::string said = testing::internal::GetCapturedStderr();
    const std::string expected =
        fmt::format("the last {} of {} lines that were admitted are lost", kLines - left, kLines);
    EXPECT_EQ(refused.find(expected) != refused.npos, left < kLines) << left << ": " << refused;
    EXPECT_EQ(said.find(expected) != said.npos, left < kLines) << said;
    EXPECT_EQ(refused.empty(), left == kLines) << refused;
    lossy += left < kLines;
    // It is said once: from now on these lines are not expected.
    EXPECT_EQ(error_of([&] { Journal again(path("cut"), {.strict = true}); }), "");
  }
  EXPECT_GT(lossy, 10);
  // The control: without the mark nobody knows.
  copy_as_after_a_crash(path(), path("unmarked"));
  fs::remove(path("unmarked-wal"));
  EXPECT_EQ(error_of([&] { Journal unmarked(path("unmarked"), {.strict = true}); }), "");
}

void flip(const std::string& path, uintmax_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 0xff));
}

// SQLite alone forgets lines without a word: see the rounds that lose some.
TEST_F(JournalTest, SaysWhatAChangedLogHasLost) {
  constexpr size_t kLines = 12;
  Journal journal(path());
  for (size_t i = 1; i <= kLines; ++i) journal.admit(entry_of(static_cast<int64_t>(i)));
  const auto size = fs::file_size(path("journal-wal"));
  std::mt19937 random(5);
  int lossy = 0;
  for (int round = 0; round < 60; ++round) {
    // Of the log's header, of each frame's header, anywhere.
    const uintmax_t at = round < 32   ? static_cast<uintmax_t>(round)
                         : round < 46 ? 32 + 4120 * (random() % (size / 4120)) + random() % 24
                                      : random() % size;
    copy_as_after_a_crash(path(), path("changed"));
    flip(path("changed-wal"), at);
    const std::string refused = error_of([&] { Journal changed(path("changed")); });
    const std::string again = error_of([&] { Journal changed(path("changed")); });
    EXPECT_EQ(refused, again);  // it was left as it lies there
    Journal accepted(path("changed"), {.accept_loss = true});
    const size_t left = accepted.all().size();
    lossy += left < kLines;
    EXPECT_EQ(refused.empty(), left == kLines) << "byte " << at << ": " << left << " lines left";
    if (refused.empty()) continue;
    EXPECT_NE(refused.find("--journal-accept-loss"), std::string::npos) << refused;
    const char* what = at < 32 ? "no line in it can be read" : "transactions are lost";
    EXPECT_NE(refused.find(what), std::string::npos) << refused;
  }
  EXPECT_GT(lossy, 40);
  fs::remove(path("changed"));
}

// A log that began again in its file: what it holds of the one before is no damage.
TEST_F(JournalTest, ALogThatBeganAgainIsWhole) {
  JournalEntry entry = entry_of(1);
  entry.idempotency_key.clear();
  entry.request.assign(1 << 20, 'x');
  Journal journal(path());
  for (int i = 0; i < 18; ++i) {
    entry.id = std::to_string(i);
    if (i % 6 == 5) std::this_thread::sleep_for(std::chrono::milliseconds(100));  // is copied
    journal.admit(entry);
    copy_as_after_a_crash(path(), path("copy"));
    EXPECT_EQ(error_of([&] { Journal copy(path("copy")); }), "") << i;
    entry.request.resize(i % 3 ? 100 : 1 << 20, 'x');
  }
}

TEST_F(JournalTest, AChangedFileIsRefused) {
  constexpr int kLines = 40;
  {
    Journal journal(path());
    for (int i = 1; i <= kLines; ++i) journal.admit(entry_of(i));
    journal.end_and_wait(entry_of(7).id, Outcome::finished);
  }
  const auto size = fs::file_size(path());
  std::mt19937 random(9);
  int refusals = 0;
  for (int round = 0; round < 60; ++round) {
    fs::copy_file(path(), path("changed"), fs::copy_options::overwrite_existing);
    flip(path("changed"), random() % size);
    if (!error_of([&] { Journal changed(path("changed")); }).empty()) {
      ++refusals;
      continue;
    }
    // A byte that nothing depends on: all lines are as they were.
    const Journal changed(path("changed"));
    for (int i = 1; i <= kLines; ++i) EXPECT_EQ(changed.find(entry_of(i).id)->entry, entry_of(i));
    EXPECT_EQ(changed.find_key("a", "key-3")->entry, entry_of(3));
  }
  EXPECT_GT(refusals, 30);
}

// A line whose bytes were changed is named and never answered, also where that is accepted.
TEST_F(JournalTest, AChangedLineIsNeverAnswered) {
  JournalEntry entry = entry_of(3);
  entry.request = "{\"prompt\": \"a text that is changed\"}";
  {
    Journal journal(path());
    journal.admit(entry);
    journal.admit(entry_of(4));
  }
  std::ifstream in(path(), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  flip(path(), bytes.find("a text that is changed"));
  const std::string refused = error_of([&] { Journal changed(path()); });
  EXPECT_NE(refused.find("1 of its lines are not as they were written and cannot be answered: "
                         "chatcmpl-3"),
            std::string::npos)
      << refused;
  Journal accepted(path(), {.accept_loss = true});
  EXPECT_NE(error_of([&] { accepted.find("chatcmpl-3"); }), "");
  EXPECT_NE(error_of([&] { accepted.find_key("a", "key-3"); }), "");
  ASSERT_EQ(accepted.unfinished().size(), 1u);  // the other goes on
  entry.id = "chatcmpl-5";
  EXPECT_NE(error_of([&] { accepted.admit(entry); }), "");  // its key has an answer already
}

// Which decides whether a request is the one that had its key before.
TEST_F(JournalTest, TheDigestOfABodyIsPartOfItsLine) {
  {
    Journal journal(path());
    journal.admit(entry_of(1));
  }
  sqlite::Connection(path()).execute("UPDATE line SET body = zeroblob(32)");
  EXPECT_NE(error_of([&] {
              Journal changed(path());
            }).find("1 of its lines are not as they were written"),
            std::string::npos);
}

// What version 1 wrote, whose lines had neither owner nor digest.
TEST_F(JournalTest, LinesOfTheFirstVersionAreKept) {
  {
    Journal journal(path());
    for (int i = 1; i <= 4; ++i) journal.admit(entry_of(i));
    journal.end_and_wait(entry_of(3).id, Outcome::finished);
  }
  {
    sqlite::Connection file(path());
    file.execute(R"(
      BEGIN;
      ALTER TABLE line RENAME TO new;
      DROP INDEX line_unfinished;
      DROP TABLE said;
      CREATE TABLE line(
        number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, created INTEGER NOT NULL,
        idempotency_key TEXT UNIQUE, endpoint TEXT NOT NULL, request TEXT NOT NULL,
        prompts BLOB NOT NULL, params BLOB NOT NULL, arithmetic TEXT NOT NULL,
        weights BLOB NOT NULL, outcome INTEGER);
      CREATE INDEX line_unfinished ON line(number) WHERE outcome IS NULL;
      INSERT INTO line SELECT number, id, created, idempotency_key, endpoint, request, prompts,
        params, arithmetic, weights, outcome FROM new;
      DROP TABLE new;
      PRAGMA user_version = 1;
      COMMIT;)");
  }
  for (int opened = 0; opened < 2; ++opened) {
    Journal journal(path());
    const std::vector<JournalLine> lines = journal.all();
    ASSERT_EQ(lines.size(), 4u);
    for (int i = 1; i <= 4; ++i) {
      JournalEntry expected = entry_of(i);
      expected.owner = kUnknownOwner;
      EXPECT_EQ(lines[static_cast<size_t>(i) - 1].entry, expected);
      EXPECT_EQ(lines[static_cast<size_t>(i) - 1].number, i);
    }
    EXPECT_EQ(lines[2].outcome, Outcome::finished);
    EXPECT_EQ(journal.unfinished().size(), 3u);
    EXPECT_EQ(journal.find_key("b", "key-3")->number, 3);  // it may be anyone's
    EXPECT_EQ(journal.check_integrity(), "");
  }
}

// What version 2 wrote, which kept bodies whole and each conversation anew: a dump of a journal.
TEST_F(JournalTest, LinesOfTheSecondVersionAreKept) {
  {
    sqlite::Connection file(path());
    file.execute(read_whole_file(INVAR_SOURCE_DIR "/tests/journal/second_version.sql").c_str());
  }
  for (int opened = 0; opened < 2; ++opened) {
    Journal journal(path());
    EXPECT_EQ(journal.check_integrity(), "");
    const std::vector<JournalLine> lines = journal.all();
    ASSERT_EQ(lines.size(), 4u + static_cast<size_t>(opened));
    const std::optional<JournalLine> line = journal.find_key("", "one");
    ASSERT_TRUE(line);
    EXPECT_EQ(line->number, 3);
    EXPECT_EQ(line->entry.prompts[1], (std::vector<int32_t>{'y', 'z'}));
    EXPECT_EQ(line->entry.params.seed, 3u);
    EXPECT_EQ(line->entry.params.logit_bias[0], std::pair(5, 1.5));
    EXPECT_EQ(line->entry.body, sha256(std::as_bytes(std::span(line->entry.request))));
    EXPECT_GT(journal.bytes_of_line(line->entry.id), 100);
    const auto before = journal.find_conversation(lines[0].entry.id);
    const auto after = journal.find_conversation(lines[1].entry.id);
    ASSERT_TRUE(before && before->has_ended && after && after->has_ended);
    EXPECT_TRUE(after->items.starts_with(before->items.substr(0, before->items.size() - 1)));
    EXPECT_GT(after->items.size(), before->items.size() + 40);
    EXPECT_FALSE(journal.find_conversation(lines[3].entry.id));
    journal.admit(entry_of(5 + opened), Said{.previous = lines[1].entry.id, .input = "[1]"});
  }
  sqlite::Connection(path()).execute("UPDATE line SET request = '{}' WHERE number = 3");
  EXPECT_NE(error_of([&] { Journal journal(path()); }).find("1 of its lines are not as they were"),
            std::string::npos);
}

// In a process of its own: a limit on the size of files, as a full disk has.
int with_a_full_disk(const std::string& path) {
  ::signal(SIGXFSZ, SIG_IGN);
  Journal journal(path);
  journal.admit(entry_of(1));
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = fs::file_size(path + "-wal") + 20'000;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  int64_t number = 2;
  std::string error;
  while (error.empty() && number < 1000)
    error = error_of([&] { journal.admit(entry_of(number++)); });
  if (error.empty()) return 10;
  const int64_t refused = number - 1;
  if (error_of([&] { journal.admit(entry_of(refused)); }).empty()) return 11;
  limit.rlim_cur = 1;  // not even for a mark
  ::setrlimit(RLIMIT_FSIZE, &limit);
  if (error_of([&] { journal.end_and_wait(entry_of(1).id, Outcome::finished); }).empty()) return 12;
  if (journal.find(entry_of(refused).id) || !journal.find(entry_of(1).id)) return 13;
  limit.rlim_cur = before;  // there is room again
  ::setrlimit(RLIMIT_FSIZE, &limit);
  journal.admit(entry_of(refused));
  if (!journal.find(entry_of(1).id)->outcome) return 14;  // the mark that found no room
  for (int64_t i = 1; i <= refused; ++i)
    if (journal.all()[static_cast<size_t>(i) - 1].entry != entry_of(i)) return 15;
  return journal.check_integrity().empty() ? 0 : 16;
}

TEST_F(JournalTest, SaysThatTheDiskIsFullAndGoesOnWhenThereIsRoom) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(with_a_full_disk(path()));
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(Journal(path()).check_integrity(), "");
}

TEST_F(JournalTest, CopiesALongLogBesideTheWriting) {
  Journal journal(path(), {.sync = JournalOptions::Sync::power_loss});
  JournalEntry entry = entry_of(1);
  entry.request.assign(1 << 20, 'x');
  for (int i = 1; i <= 24; ++i) {
    entry.id = std::to_string(i);
    entry.idempotency_key.clear();
    journal.admit(entry);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (fs::file_size(path()) < (1 << 20) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GT(fs::file_size(path()), 1u << 20);
  EXPECT_EQ(journal.all().size(), 24u);
}

}  // namespace
}  // namespace invar::server
