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

// A function gets what it has parameters for, and says a reward or the next message.
TEST_F(OwnProblemsTest, are_judged_by_a_python_function) {
  OwnTasks own = tasks(kThree);
  const std::string file = (directory_ / "judge.py").string();
  std::ofstream(file) << R"(
def reward(answer, right):
    print("what is printed goes elsewhere")
    return 0.5 if answer == right else -1

def talk(answer, turn, **more):
    return f"again, {more['conversation']}" if turn == 0 else {"reward": 2}

def raw(answer):
    return {"text": "<|im_end|>"}
)";
  own.python = file + ":reward";
  OwnProblems problems(own);
  const Problem problem = problems.make(corpus::Split::problems, 0);
  EXPECT_EQ(problems.reward(problem, "1", true), 0.5);
  EXPECT_EQ(problems.reward(problem, "2", true), -1);
  EXPECT_EQ(problems.judge_name().substr(0, 14), "python reward ");

  own.python = file + ":talk";
  OwnProblems talking(own);
  EXPECT_EQ(talking.judge({.problem = problem, .answer = "a", .conversation = 7}).message,
            "\n<|im_start|>user\nagain, 7<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      talking.judge({.problem = problem, .answer = "a", .ended = false}).message.substr(0, 10),
      "<|im_end|>");
  EXPECT_EQ(talking.judge({.problem = problem, .answer = "a", .turn = 1}).reward, 2);
  EXPECT_NE(talking.judge_name(), problems.judge_name());
  EXPECT_NE(sentence_of([&] { talking.reward(problem, "a", true); }).find("found a message"),
            std::string::npos);
  own.python = file + ":raw";
  EXPECT_EQ(OwnProblems(own).judge({.problem = problem, .answer = "a"}).message, "<|im_end|>");
  for (const char* wrong : {"judge.py", ":x", "x:"}) {
    own.python = wrong;
    EXPECT_NE(sentence_of([&] { OwnProblems{own}; }).find("FILE:NAME"), std::string::npos);
  }
  own.python = file + ":nothing";
  EXPECT_NE(sentence_of([&] { OwnProblems(own).reward(problem, "a", true); }).find("ended"),
            std::string::npos);
}

// verl's columns, too. Where pyarrow is not installed, the file is refused.
TEST_F(OwnProblemsTest, are_rows_of_a_parquet_file) {
  const std::string file = (directory_ / "problems.parquet").string();
  const std::string write =
      "python3 -c 'import sys, pyarrow as a, pyarrow.parquet as p; "
      "p.write_table(a.Table.from_pylist([{\"prompt\": [{\"role\": \"user\", "
      "\"content\": \"u\"}], \"reward_model\": {\"ground_truth\": \"4\"}}] * 3), "
      "sys.argv[1])' ";
  const bool has_arrow = std::system((write + file + " 2> /dev/null").c_str()) == 0;
  if (!has_arrow) std::ofstream(file) << "PAR1";
  const auto open = [&] { return OwnProblems({.file = file}); };
  if (!has_arrow)
    EXPECT_NE(sentence_of(open).find("pyarrow"), std::string::npos);
  else
    EXPECT_EQ(open().make(corpus::Split::problems, 2).right, "4");
}

TEST_F(OwnProblemsTest, say_what_is_wrong_with_a_program) {
  const Problem problem{Task::own, "p", ""};
  const auto sentence = [&](const std::vector<std::string>& command) {
    return sentence_of([&] { RewardProcess(command).judge({.problem = problem, .answer = "a"}); });
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
