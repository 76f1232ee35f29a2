#include "tokenizer/utf8.h"

#include <gtest/gtest.h>
#include <unicode/utf8.h>

namespace invar::utf8 {
namespace {

// ICU's decoder is the independent witness.
size_t icu_find_invalid(std::string_view bytes) {
  for (int32_t i = 0; i < static_cast<int32_t>(bytes.size());) {
    const int32_t begin = i;
    UChar32 c;
    U8_NEXT(bytes.data(), i, static_cast<int32_t>(bytes.size()), c);
    if (c < 0) return begin;
  }
  return std::string_view::npos;
}

TEST(Utf8, AgreesWithIcuOnEveryThreeBytes) {
  std::string bytes(4, 'x');
  for (int a = 0x70; a < 256; ++a)
    for (int b = 0x70; b < 256; ++b)
      for (int c = 0x70; c < 256; c += 3) {
        bytes[0] = static_cast<char>(a), bytes[1] = static_cast<char>(b);
        bytes[2] = static_cast<char>(c), bytes[3] = static_cast<char>(c ^ 0x15);
        ASSERT_EQ(find_invalid(bytes), icu_find_invalid(bytes)) << a << " " << b << " " << c;
      }
}

TEST(Utf8, EveryCharacterGoesThrough) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append(text, c);
    ASSERT_EQ(find_invalid(text), std::string_view::npos);
    ASSERT_EQ(length(text[0]), text.size());
    ASSERT_EQ(decode(text, 0), c);
    const Front whole = front(text);
    ASSERT_TRUE(whole.kind == Front::kCharacter && whole.length == static_cast<int>(text.size()));
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const Front part = front(std::string_view(text).substr(0, cut));
      ASSERT_TRUE(part.kind == Front::kCutOff && part.length == static_cast<int>(cut));
    }
  }
}

TEST(Utf8, RepairsAsTheUnicodeStandardShows) {
  const auto repaired = [](std::string_view bytes) {
    std::string out;
    append_repaired(out, bytes);
    for (size_t at; (at = out.find(kReplacement)) != std::string::npos;) out.replace(at, 3, 1, '?');
    return out;
  };
  // Tables 3-8 to 3-11 of chapter 3.
  EXPECT_EQ(repaired("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), "????????A");
  EXPECT_EQ(repaired("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), "????????A");
  EXPECT_EQ(repaired("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), "?????A??B");
  EXPECT_EQ(repaired("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "????A");
}

}  // namespace
}  // namespace invar::utf8
