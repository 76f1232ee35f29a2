// Ids that another implementation (Hugging Face's own) gave for a made tokenizer; oracle/record.mjs
// wrote them.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "tokenizer/make_tokenizer.h"

namespace invar {
namespace {

TEST(Recorded, EqualsTheReference) {
  const Tokenizer tokenizer = Tokenizer::from_texts(make_tokenizer(2000, 1).texts, "made");
  std::ifstream file(INVAR_SOURCE_DIR "/tests/tokenizer/recorded.jsonl");
  int strings = 0, special = 0;
  for (std::string line; std::getline(file, line); ++strings) {
    const json::Value record = json::parse(line, "recorded.jsonl");
    const std::string& text = record.find("text")->as_string();
    std::vector<int32_t> expected;
    for (const json::Value& id : record.find("ids")->as_array())
      expected.push_back(static_cast<int32_t>(id.as_integer()));
    EXPECT_EQ(tokenizer.encode(text), expected) << text;
    special += !expected.empty() && tokenizer.is_special(expected[0]);
  }
  EXPECT_GT(strings, 200);
  EXPECT_GT(special, 0);
}

}  // namespace
}  // namespace invar
