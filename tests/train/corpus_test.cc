// The corpus: the same everywhere and always, right where it claims something, nothing held out in
// what is trained on.
#include "train/corpus/corpus.h"

#include <gtest/gtest.h>

#include <charconv>
#include <regex>
#include <set>
#include <unordered_set>

#include "base/sha256.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::corpus {
namespace {

constexpr uint64_t kSeed = 1;

std::string digest(uint64_t seed, Split split) {
  Sha256 sha;
  for (int64_t i = 0; i < 300; ++i) {
    const std::string text = text_of(make_sample(seed, split, i));
    sha.update(std::as_bytes(std::span(text)));
  }
  return to_hex(sha.finish());
}

TEST(Corpus, IsAFunctionOfSeedSplitAndNumber) {
  EXPECT_EQ(digest(kSeed, Split::training),
            "027baea4f2f329fa537fa0ee9e5f616c37c152c90b204d5746b3b4499a07b269");
  EXPECT_NE(digest(kSeed, Split::training), digest(kSeed, Split::held_out));
  EXPECT_NE(digest(kSeed, Split::training), digest(kSeed + 1, Split::training));
}

TEST(Corpus, TrainingHasNoHeldOutStory) {
  std::unordered_set<std::string> trained;
  for (int64_t i = 0; i < 70000; ++i) {  // more than recipes/story.toml reads
    const Sample sample = make_sample(kSeed, Split::training, i);
    if (!sample.story.empty()) trained.insert(sample.story);
  }
  EXPECT_GT(trained.size(), 42000u);
  int stories = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const Sample sample = make_sample(kSeed, Split::held_out, i);
    if (sample.story.empty()) continue;
    ++stories;
    EXPECT_FALSE(trained.contains(sample.story)) << sample.story;
  }
  EXPECT_GT(stories, 500);
  // The search finds what is there.
  int64_t i = 0;
  while (make_sample(kSeed, Split::training, i).story.empty()) ++i;
  EXPECT_TRUE(trained.contains(make_sample(kSeed, Split::training, i).story));
}

// Every choice and name of the patterns is expanded, and articles fit.
TEST(Corpus, TextIsWhole) {
  const std::regex wrong_article(" a [aeio]| an [^aeiouh]|[Aa] honest");
  std::set<Kind> kinds;
  for (int64_t i = 0; i < 2000; ++i) {
    const Sample sample = make_sample(kSeed, Split::training, i);
    kinds.insert(sample.kind);
    EXPECT_EQ(sample.story.find_first_of("[]{}|<>"), std::string::npos) << sample.story;
    EXPECT_EQ(sample.story.find("  "), std::string::npos) << sample.story;
    if (!sample.story.empty()) {
      EXPECT_FALSE(std::regex_search(sample.story, wrong_article)) << sample.story;
    }
  }
  EXPECT_EQ(kinds.size(), kKindNames.size());
}

int last_number(const std::string& text) {
  const size_t end = text.find_last_of("0123456789");
  size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(text[begin - 1]))) --begin;
  return std::stoi(text.substr(begin, end + 1 - begin));
}

// Computes every sum again from its question, and every line of its work.
TEST(Corpus, SumsAreRight) {
  const std::regex binary(R"((\d+) ([-+*]) (\d+)(?: ([-+]) (\d+))? = (\d+))");
  const std::regex asked(R"((\d+) ([-+*]) (\d+))");
  const auto apply = [](int a, char op, int b) {
    return op == '+' ? a + b : op == '-' ? a - b : a * b;
  };
  Random random(kSeed, 0, Split::held_out);
  int questions = 0, lines = 0;
  for (int i = 0; i < 3000; ++i) {
    const Turn turn = make_arithmetic(random);
    std::smatch m;
    if (std::regex_search(turn.user, m, asked)) {
      EXPECT_EQ(last_number(turn.assistant), apply(std::stoi(m[1]), m[2].str()[0], std::stoi(m[3])))
          << turn.user << "\n"
          << turn.assistant;
      ++questions;
    }
    for (std::sregex_iterator at(turn.assistant.begin(), turn.assistant.end(), binary), end;
         at != end; ++at) {
      int value = apply(std::stoi((*at)[1]), (*at)[2].str()[0], std::stoi((*at)[3]));
      if ((*at)[4].matched) value = apply(value, (*at)[4].str()[0], std::stoi((*at)[5]));
      EXPECT_EQ(value, std::stoi((*at)[6])) << turn.user << "\n" << turn.assistant;
      ++lines;
    }
  }
  EXPECT_GT(questions, 2000);
  EXPECT_GT(lines, 4000);
}

// The tokens of a document are those of its text: what is trained is what is asked later.
TEST(Corpus, DocumentsAreTheTokensOfTheirText) {
  const Tokenizer tokenizer = Tokenizer::from_texts(make_tokenizer(1024, 1).texts, "made");
  Documents documents(kSeed, Split::training, tokenizer);
  for (int64_t i = 0; i < 200; ++i) {
    const Document document = documents.document(i);
    const Sample sample = make_sample(kSeed, Split::training, i);
    EXPECT_EQ(document.tokens, tokenizer.encode(text_of(sample))) << text_of(sample);
    std::vector<int32_t> learned;
    for (size_t t = 0; t < document.tokens.size(); ++t)
      if (document.wanted[t]) learned.push_back(document.tokens[t]);
    const std::string text = tokenizer.decode(learned, {.skip_special = false});
    if (sample.kind == Kind::arithmetic) {
      std::string answers;
      for (const Turn& turn : sample.turns) answers += turn.assistant + "<|im_end|>";
      EXPECT_EQ(text, answers);
    }
  }
}

}  // namespace
}  // namespace invar::corpus
