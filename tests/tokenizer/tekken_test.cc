#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace invar {
namespace {

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      text += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

json::Value file_of(const std::vector<std::string>& words) {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  bytes.insert(bytes.end(), words.begin(), words.end());
  json::Array vocab;
  for (const std::string& token : bytes)
    vocab.push_back(json::Object{{"rank", static_cast<int64_t>(vocab.size())},
                                 {"token_bytes", base64(token)},
                                 {"token_str", nullptr}});
  const json::Value config =
      json::Object{{"pattern", R"( ?\p{L}+|\p{N}|\s+|[^\s\p{L}\p{N}]+)"},
                   {"num_vocab_tokens", static_cast<int64_t>(bytes.size())},
                   {"default_vocab_size", static_cast<int64_t>(bytes.size()) + 30},
                   {"default_num_special_tokens", 30},
                   {"version", "v3"}};
  return json::Object{{"config", config}, {"vocab", std::move(vocab)}};
}

Tokenizer load(const json::Value& file) {
  return Tokenizer::from_texts({.tekken_json = json::dump(file)}, "dir");
}

TEST(Tekken, MergesByRankAndTakesWholeWords) {
  const Tokenizer tokenizer = load(file_of({"bc", "ab", "abcd", " ab"}));
  const int32_t bc = 30 + 256;
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<int32_t>{1, 30 + 'a', bc}));  // bc is sooner
  EXPECT_EQ(tokenizer.encode("abcd"),
            (std::vector<int32_t>{1, bc + 2}));  // though no pair leads there
  EXPECT_EQ(tokenizer.encode(" ab", {.add_special_tokens = false}), (std::vector<int32_t>{bc + 3}));
  EXPECT_EQ(tokenizer.encode("[INST]b"), (std::vector<int32_t>{1, 3, 30 + 'b'}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("abc é[INST]")), "abc é");
  EXPECT_EQ(tokenizer.token_text(29), "<SPECIAL_29>");
  EXPECT_TRUE(tokenizer.is_special(29));
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.vocab_size(), 30 + 256 + 4);
}

TEST(Tekken, WhatIsBrokenIsNamed) {
  const auto refused = [](const char* part, const json::Value& value, const char* named) {
    json::Value file = file_of({"ab"});
    json::Value config = *file.find("config");
    config.set(part, value);
    file.set("config", config);
    try {
      load(file);
      FAIL() << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
    }
  };
  refused("default_vocab_size", 5, "config.default_vocab_size");
  refused("default_vocab_size", 999, "vocab");
  refused("default_num_special_tokens", 1, "config.default_num_special_tokens");
  refused("version", "v13", "special_tokens");
  refused("version", "3", "config.version");
  refused("pattern", "(", "config.pattern");
  json::Value file = file_of({"ab"});
  file.as_object()[1].second.as_array()[3].set("token_bytes", "!");
  EXPECT_THROW(load(file), Error);
}

}  // namespace
}  // namespace invar
