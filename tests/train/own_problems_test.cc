// Problems from a file, and what judges their answers.
#include "train/rl/own_problems.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace invar::rl {
namespace {

namespace fs = std::filesystem;

class OwnProblemsTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / fmt::format("invar-own-{}", getpid());
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  OwnTasks tasks(const std::string& lines) const {
    std::ofstream(directory_ / "problems.jsonl") << lines;
    return {.file = (directory_ / "problems.jsonl").string()};
  }
  // A shell program that does this with each line.
  static std::vector<std::string> program(const std::string& each) {
    return {"/bin/sh", "-c", "while read -r line; do " + each + "; done"};
  }
  template <typename Work>
  static std::string sentence_of(Work work) {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
    return "";
  }

  fs::path directory_;
};

constexpr const char* kThree = R"({"prompt": "a", "answer": "1"}
{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "answer": "x\n2"}

{"prompt": "c"}
)";

TEST_F(OwnProblemsTest, are_lines_that_go_round) {
  OwnTasks own = tasks(kThree);
  own.held_out = 1;
  const OwnProblems problems(own);
  const auto prompt = [&](int64_t index) {
    return problems.make(corpus::Split::problems, index).prompt;
  };
  EXPECT_EQ(prompt(0), "a");
  EXPECT_EQ(
      prompt(1),
      "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt(2), "a");
  EXPECT_EQ(problems.make(corpus::Split::held_out_problems, 5).prompt, "c");
  EXPECT_NE(OwnProblems(tasks("{\"prompt\": \"b\"}\n")).digest(), problems.digest());
}

TEST_F(OwnProblemsTest, have_rewards_by_name) {
  const Problem problem{Task::own, "p", "x\n2"};
  const auto reward = [&](const char* name, const std::string& answer, bool ended = true) {
    OwnTasks own = tasks(kThree);
    own.reward = name;
    return OwnProblems(own).reward(problem, answer, ended);
  };
  EXPECT_EQ(reward("exact", "x\n2"), 1);
  EXPECT_EQ(reward("exact", "y\n2"), 0);
  EXPECT_EQ(reward("last_line", "y\n2"), 1);
  EXPECT_EQ(reward("last_line", "2\ny"), 0);
  EXPECT_EQ(reward("contains", "so x\n2."), 1);
  EXPECT_EQ(reward("contains", "so 2"), 0);
  EXPECT_EQ(reward("exact", "x\n2", false), 0);
}

TEST_F(OwnProblemsTest, are_judged_by_a_program) {
  OwnTasks own = tasks(kThree);
  own.command = program(
      R"(case "$line" in *'"answer": "good"'*) echo '{"reward": 0.25}';; *) echo '{"reward": -1}';; esac)");
  OwnProblems problems(own);
  const Problem problem = problems.make(corpus::Split::problems, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(problems.reward(problem, "good", false), 0.25);
    EXPECT_EQ(problems.reward(problem, "bad", true), -1);
  }
}

TEST_F(OwnProblemsTest, say_what_is_wrong_with_a_program) {
  const Problem problem{Task::own, "p", ""};
  const auto sentence = [&](const std::vector<std::string>& command) {
    return sentence_of([&] { RewardProcess(command).reward(problem, "a", true); });
  };
  EXPECT_NE(sentence({"/bin/true"}).find("ended"), std::string::npos);
  EXPECT_NE(sentence({"/nowhere"}).find("ended"), std::string::npos);
  for (const char* said : {"echo 1", "echo '{}'", "echo '{\"reward\": \"1\"}'"})
    EXPECT_NE(sentence(program(said)).find("expected {\"reward\": number}"), std::string::npos)
        << said;
  EXPECT_NE(sentence(program("echo nothing")), "");
}

TEST_F(OwnProblemsTest, name_the_line_that_is_none) {
  for (const char* line : {"{", "1", "{\"answer\": \"1\"}", "{\"prompt\": 1}", "{\"messages\": []}",
                           "{\"messages\": [{\"content\": \"u\"}]}"})
    EXPECT_NE(sentence_of([&] {
                OwnProblems(tasks(std::string("{\"prompt\": \"a\"}\n") + line));
              }).find("line 2"),
              std::string::npos)
        << line;
  EXPECT_NE(sentence_of([&] { OwnProblems(tasks("\n")); }), "");
  EXPECT_NE(sentence_of([&] { OwnProblems({.file = "/nowhere"}); }), "");
}

}  // namespace
}  // namespace invar::rl
