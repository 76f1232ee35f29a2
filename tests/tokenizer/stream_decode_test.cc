#include <gtest/gtest.h>

#include <random>

#include "tiny_files.h"
#include "tokenizer/utf8.h"

namespace invar {
namespace {

TEST(StreamDecoder, NeverEmitsABrokenCharacter) {
  // Tokens that end and begin inside characters, beside the 256 bytes.
  const Tokenizer tokenizer = from_json(tiny_json(
      {{"\xe6", "\x97"}, {"\xa5", "\xe6"}, {"\xf0\x9f", "\x91"}, {"\xf0", "\x9f"}, {"a", "\xc3"}}));
  std::mt19937 random(3);
  const int32_t likely[] = {0xe6, 0x97, 0xa5, 0xf0, 0x9f, 0x91, 0xa9,
                            0xc3, 'a',  256,  257,  258,  259};
  int pieces_without_text = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<int32_t> ids(random() % 24);
    for (int32_t& id : ids)
      id = random() % 4 ? likely[random() % std::size(likely)]
                        : static_cast<int32_t>(random() % 262);
    StreamDecoder decoder(tokenizer);
    std::string text, bytes;
    for (const int32_t id : ids) {
      std::string piece;
      decoder.push(id, piece);
      ASSERT_EQ(utf8::find_invalid(piece), std::string_view::npos);
      pieces_without_text += piece.empty();
      text += piece;
      if (!tokenizer.is_special(id)) bytes += tokenizer.token_bytes(id);
    }
    decoder.finish(text);
    std::string expected;  // all bytes at once
    utf8::append_repaired(expected, bytes);
    ASSERT_EQ(text, expected);
    ASSERT_EQ(text, tokenizer.decode(ids));
  }
  EXPECT_GT(pieces_without_text, 1000);  // characters were held back
}

TEST(StreamDecoder, EmitsEachCharacterWithItsLastByte) {
  const Tokenizer tokenizer = from_json(tiny_json({}));
  StreamDecoder decoder(tokenizer);
  std::string out;
  decoder.push(0xe2, out);
  decoder.push(0x82, out);
  EXPECT_EQ(out, "");
  decoder.push(0xac, out);
  EXPECT_EQ(out, "\xe2\x82\xac");
  decoder.push(0xe2, out);
  decoder.push('x', out);  // the character cannot go on
  EXPECT_EQ(out, "\xe2\x82\xac\xef\xbf\xbdx");
  decoder.push(0xf0, out);
  decoder.finish(out);
  EXPECT_EQ(out, "\xe2\x82\xac\xef\xbf\xbdx\xef\xbf\xbd");
  decoder.finish(out);
  EXPECT_EQ(out, "\xe2\x82\xac\xef\xbf\xbdx\xef\xbf\xbd");
}

}  // namespace
}  // namespace invar
