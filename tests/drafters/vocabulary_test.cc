// A drafter of another tokenizer would draft other texts: it is refused, naming the first token
// that differs.
#include "drafters/vocabulary.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"

namespace invar {
namespace {

class VocabularyTest : public testing::Test {
 protected:
  ~VocabularyTest() override { std::filesystem::remove_all(root_); }

  // A directory whose tokenizer.json has this vocabulary; none where it is empty.
  std::string directory(const std::string& name, const std::string& vocab) {
    const std::string path = root_ + "/" + name;
    std::filesystem::create_directories(path);
    if (!vocab.empty())
      write_file_atomically(path + "/tokenizer.json", R"({"model": {"vocab": )" + vocab + "}}");
    return path;
  }
  static std::string refusal(const std::string& target, const std::string& drafter) {
    try {
      expect_same_vocabulary(target, drafter);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  const std::string root_ = testing::TempDir() + "vocabulary_test_" + std::to_string(getpid());
};

TEST_F(VocabularyTest, AnotherTokenIsNamed) {
  const std::string target = directory("target", R"({"a": 0, "b": 1, "c": 2})");
  const std::string other = directory("other", R"({"c": 2, "x": 1, "a": 0})");
  EXPECT_EQ(refusal(target, other),
            "expected a drafter of the target's vocabulary, in which token 1 is \"b\", found "
            "\"x\" in " +
                other);
  const std::string shorter = directory("shorter", R"({"a": 0, "b": 1})");
  EXPECT_EQ(refusal(target, shorter),
            "expected a drafter of the target's vocabulary, in which token 2 is \"c\", found no "
            "such token in " +
                shorter);
  // A list of pairs of a token and its score, as of SentencePiece.
  const std::string list = directory("list", R"([["a", 0], ["c", -1], ["b", -2]])");
  EXPECT_NE(refusal(target, list).find("token 1 is \"b\", found \"c\""), std::string::npos);
}

TEST_F(VocabularyTest, TheSameTokensAreTaken) {
  const std::string target = directory("target", R"({"a": 0, "b": 1, "c": 2})");
  EXPECT_EQ(refusal(target, target), "");
  EXPECT_EQ(refusal(target, directory("same", R"([["a", 0], ["b", -1], ["c", -2]])")), "");
  EXPECT_EQ(refusal(target, directory("more", R"({"c": 2, "b": 1, "a": 0, "d": 3})")), "");
  EXPECT_EQ(refusal(target, directory("without", "")), "");
}

}  // namespace
}  // namespace invar
