// Ids that other implementations gave; oracle/record.mjs wrote them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tiny_files.h"
#include "tokenizer/make_tokenizer.h"

namespace invar {
namespace {

const std::string kFolder = INVAR_SOURCE_DIR "/tests/tokenizer/recorded/";

int strings_compared(const Tokenizer& tokenizer, const char* name, const EncodeOptions& options) {
  std::ifstream file(kFolder + name);
  int strings = 0;
  for (std::string line; std::getline(file, line); ++strings) {
    const json::Value record = json::parse(line, name);
    const std::string& text = record.find("text")->as_string();
    std::vector<int32_t> expected;
    for (const json::Value& id : record.find("ids")->as_array())
      expected.push_back(static_cast<int32_t>(id.as_integer()));
    EXPECT_EQ(tokenizer.encode(text, options), expected) << text;
  }
  return strings;
}

// Hugging Face's library with a made tokenizer.
TEST(Recorded, BytePairs) {
  const Tokenizer tokenizer = Tokenizer::from_texts(make_tokenizer(2000, 1).texts, "made");
  EXPECT_GT(strings_compared(tokenizer, "bpe.jsonl", {}), 200);
}

// SentencePiece's library with a model that it trained; it knows neither templates nor special
// tokens in text.
TEST(Recorded, SentencePiece) {
  const Tokenizer tokenizer = Tokenizer::load(kFolder);
  const EncodeOptions plain{.add_special_tokens = false, .parse_special = false};
  EXPECT_GT(strings_compared(tokenizer, "sentencepiece.jsonl", plain), 100);
}

}  // namespace
}  // namespace invar
