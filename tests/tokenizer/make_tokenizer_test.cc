#include "tokenizer/make_tokenizer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"
#include "tokenizer/train_bpe.h"
#include "tokenizer/utf8.h"

namespace invar {
namespace {

// Count all pairs, merge the best everywhere, begin again.
std::vector<std::pair<int32_t, int32_t>> trained_by_definition(const std::vector<WordCount>& words,
                                                               size_t merges, int64_t min_count) {
  std::vector<std::vector<int32_t>> symbols;
  std::map<std::string, int32_t> ids;
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) {
    tokens.emplace_back(1, static_cast<char>(b));
    ids[tokens.back()] = b;
  }
  for (const auto& word : words) {
    symbols.emplace_back();
    for (const char c : word.word) symbols.back().push_back(static_cast<unsigned char>(c));
  }
  std::vector<std::pair<int32_t, int32_t>> out;
  while (out.size() < merges) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (size_t w = 0; w < words.size(); ++w)
      for (size_t i = 0; i + 1 < symbols[w].size(); ++i)
        counts[{symbols[w][i], symbols[w][i + 1]}] += words[w].count;
    std::pair<int32_t, int32_t> best;
    int64_t most = min_count - 1;
    for (const auto& [pair, count] : counts)
      if (count > most) best = pair, most = count;
    if (most < min_count) break;
    out.push_back(best);
    const std::string joined = tokens[best.first] + tokens[best.second];
    const auto [place, is_new] = ids.try_emplace(joined, static_cast<int32_t>(tokens.size()));
    if (is_new) tokens.push_back(joined);
    for (auto& word : symbols)
      for (size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == best.first && word[i + 1] == best.second) {
          word[i] = place->second;
          word.erase(word.begin() + i + 1);
        }
  }
  return out;
}

TEST(TrainBpe, KeepsToTheDefinition) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    std::vector<WordCount> words(1 + random() % 12);
    for (auto& word : words) {
      word.count = 1 + random() % 5;
      for (int n = random() % 14; n >= 0; --n) word.word += "abc"[random() % (2 + round % 2)];
    }
    const int64_t min_count = 1 + round % 3;
    const TrainedBpe trained = train_bpe(words, 256 + 40, min_count);
    // One merge more than there are would show an early stop.
    const bool full = trained.tokens.size() == 256 + 40;
    const auto expected =
        trained_by_definition(words, trained.merges.size() + (full ? 0 : 1), min_count);
    ASSERT_EQ(trained.merges.size(), expected.size());
    for (size_t i = 0; i < trained.merges.size(); ++i)
      ASSERT_EQ(std::pair(trained.merges[i].left, trained.merges[i].right), expected[i]);
  }
}

TEST(TrainBpe, StopsAtTheSize) {
  WordCounter counter(kQwen2Pattern);
  counter.add(built_in_text());
  EXPECT_EQ(train_bpe(counter.counts(), 300).tokens.size(), 300u);
  EXPECT_EQ(train_bpe(counter.counts(), 256).merges.size(), 0u);
  EXPECT_THROW(train_bpe(counter.counts(), 255), UsageError);
  EXPECT_THROW(counter.add("\xff"), UsageError);
}

Tokenizer tokenizer_of(const MadeTokenizer& made) {
  return Tokenizer::from_texts(made.texts, "made");
}

TEST(MakeTokenizer, HasTheSizeAskedFor) {
  for (const int32_t size : {259, 260, 300, 512, 1000, 4096, 32000}) {
    const MadeTokenizer made = make_tokenizer(size, 1);
    const Tokenizer tokenizer = tokenizer_of(made);
    EXPECT_EQ(tokenizer.vocab_size(), size);
    EXPECT_EQ(tokenizer.bos_id(), made.bos_id);
    EXPECT_EQ(tokenizer.eos_id(), made.eos_id);
    EXPECT_EQ(tokenizer.id_of("<|im_end|>"), made.eos_id);
    std::set<std::string_view> distinct;
    for (int32_t id = 0; id < size; ++id) {
      const std::string_view bytes = tokenizer.token_bytes(id);
      ASSERT_FALSE(bytes.empty());
      ASSERT_TRUE(distinct.insert(bytes).second);
      // The built-in text holds a few characters of other scripts; all else is whole.
      if (size == 32000 && id >= 4000) {
        ASSERT_EQ(utf8::find_invalid(bytes), std::string_view::npos) << id;
      }
    }
    const std::string text =
        "The lighthouse keeper's 42 caf\xc3\xa9s: \xe4\xbd\xa0\xe5\xa5\xbd!\n\n";
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_THROW(make_tokenizer(258, 1), UsageError);
  EXPECT_THROW(make_tokenizer(INT32_MAX, 1), UsageError);
}

TEST(MakeTokenizer, WordsOfTheTextAreTokens) {
  const Tokenizer tokenizer = tokenizer_of(make_tokenizer(8192, 1));
  EXPECT_EQ(tokenizer.encode(" lighthouse water question").size(), 3u);
  EXPECT_EQ(tokenizer.encode("<|im_start|>user\nhello<|im_end|>\n").front(), 8190);
}

TEST(MakeTokenizer, SeedAndSizeAreEverything) {
  const auto json = [](int32_t size, uint64_t seed) {
    return make_tokenizer(size, seed).texts.tokenizer_json;
  };
  EXPECT_EQ(json(6000, 1), json(6000, 1));
  EXPECT_NE(json(6000, 1), json(6000, 2));
  EXPECT_EQ(json(400, 1), json(400, 2));  // no pairs yet
  // The files are a contract: models made earlier must get the same tokenizer again.
  const std::string text = json(6000, 1);
  EXPECT_EQ(to_hex(sha256(std::as_bytes(std::span(text)))),
            "9ce28432be4fc9b1b8544b83049e5d7971e2c2845f7c507ca45ad2e40008de6c");
}

TEST(MakeTokenizer, TheLargestVocabulariesWork) {
  const Tokenizer tokenizer = tokenizer_of(make_tokenizer(151936, 7));
  EXPECT_EQ(tokenizer.vocab_size(), 151936);
  EXPECT_EQ(tokenizer.id_of("<|endoftext|>"), 151933);
}

}  // namespace
}  // namespace invar
