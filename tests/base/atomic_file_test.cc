#include "base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/thread_pool.h"

namespace invar {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest() {
    std::string pattern = (fs::temp_directory_path() / "invar-test-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~AtomicFileTest() override { fs::remove_all(directory_); }

  int files() const {
    return static_cast<int>(std::distance(fs::directory_iterator(directory_), {}));
  }

  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(directory_ / "file").rdbuf();
    return text.str();
  }

  fs::path directory_;
};

TEST_F(AtomicFileTest, AppearsWhenCommitted) {
  write_file_atomically(directory_ / "file", "old");
  {
    AtomicFile file(directory_ / "file", 6);
    file.write_at(3, std::as_bytes(std::span("def", 3)));
    file.write_at(0, std::as_bytes(std::span("abc", 3)));
    EXPECT_EQ(content(), "old");
    file.commit();
  }
  EXPECT_EQ(content(), "abcdef");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, LeavesNothingWhenAbandoned) {
  write_file_atomically(directory_ / "file", "old");
  { AtomicFile(directory_ / "file").write_at(0, std::as_bytes(std::span("x", 1))); }
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, SaysWhatTheSystemSaid) {
  const auto message = [](auto action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  EXPECT_NE(message([&] { AtomicFile(directory_ / "no" / "file"); }).find("No such file"),
            std::string::npos);
  EXPECT_NE(message([&] { AtomicFile(directory_ / "file", int64_t{1} << 60); }).find("reserved"),
            std::string::npos);
  fs::create_directory(directory_ / "file");
  EXPECT_NE(
      message([&] { write_file_atomically(directory_ / "file", "x"); }).find("found a directory"),
      std::string::npos);
  EXPECT_EQ(files(), 1);
}

// A limit on the size of files stands for a disk that fills up.
TEST_F(AtomicFileTest, AFailedWriteLosesNothing) {
  write_file_atomically(directory_ / "file", "old");
  rlimit old_limit;
  getrlimit(RLIMIT_FSIZE, &old_limit);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{4096, old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_THROW(write_file_atomically(directory_ / "file", std::string(5000, 'x')), Error);
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(files(), 1);
}

TEST(RunOrThrow, ThrowsWhatTheLowestShareThrew) {
  ThreadPool pool(4);
  int ended[4] = {};
  try {
    run_or_throw(pool, [&](Part part) {
      ended[part.index] = 1;
      if (part.index % 2) fail("share {}", part.index);
    });
    ADD_FAILURE() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "share 1");
  }
  EXPECT_EQ(ended[0] + ended[1] + ended[2] + ended[3], 4);
}

}  // namespace
}  // namespace invar
