// Normal forms of long runs of marks are those of ICU, which is given short runs only.
#include "tokenizer/normalizer.h"

#include <gtest/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include <random>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace invar::tokenizer {
namespace {

constexpr UnicodeForm kForms[] = {UnicodeForm::kNfc, UnicodeForm::kNfd, UnicodeForm::kNfkc,
                                  UnicodeForm::kNfkd};

// The definition: ICU on the text as it is.
std::string by_icu(UnicodeForm form, const std::string& text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizers[] = {
      icu::Normalizer2::getNFCInstance(status), icu::Normalizer2::getNFDInstance(status),
      icu::Normalizer2::getNFKCInstance(status), icu::Normalizer2::getNFKDInstance(status)};
  std::string out;
  normalizers[static_cast<int>(form)]
      ->normalize(icu::UnicodeString::fromUTF8(text), status)
      .toUTF8String(out);
  EXPECT_TRUE(U_SUCCESS(status));
  return out;
}

std::string ours(UnicodeForm form, std::string text) {
  normalize({form}, text);
  return text;
}

// Marks of many classes, some that decompose into several, starters that combine with what stands
// before them, and a few that end every run.
std::vector<char32_t> alphabet() {
  std::vector<char32_t> all = {0x0301,  0x0323,  0x0345,  0x0315,  0x05b0, 0x0344, 0x0f73, 0x0f75,
                               0x0f81,  0x3099,  0x09be,  0x0dcf,  0x0dca, 0x1161, 0x11a8, 0x1b35,
                               0x1133e, 0x114ba, 0x1d165, 0x1d16e, 0x0340, 0x0341, 0x0343, 0x302a};
  for (char32_t c = 0x0300; c < 0x0370; ++c) all.push_back(c);
  return all;
}

TEST(Normalizer, LongRunsAreIcus) {
  std::mt19937 random(11);
  const std::vector<char32_t> marks = alphabet();
  const char32_t starters[] = {'e', 'A', 0x1e14, 0x09c7, 0x0dd9, 0x1100, 0xac00, 0x1e9b, 0xfdfa};
  for (int round = 0; round < 400; ++round) {
    std::string text;
    const size_t few = 1 + random() % marks.size();  // of the alphabet
    for (int runs = 1 + static_cast<int>(random() % 3); runs > 0; --runs) {
      if (random() % 4) utf8::append(text, starters[random() % std::size(starters)]);
      for (size_t length = random() % 300; length > 0; --length)
        utf8::append(text, random() % 150 ? marks[(random() % few + round) % marks.size()]
                                          : starters[random() % std::size(starters)]);
    }
    for (const UnicodeForm form : kForms)
      ASSERT_EQ(ours(form, text), by_icu(form, text)) << "round " << round;
  }
}

// Every character behind and before a long run.
TEST(Normalizer, EveryCharacterBesideALongRunIsIcus) {
  std::string run;
  for (int i = 0; i < 50; ++i) run += "\xcc\x81\xcc\xa3";
  for (char32_t c = 0x80; c < 0x30000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    utf8::append(text, c);
    text += run;
    utf8::append(text, c);
    const UnicodeForm form = kForms[c & 3];
    ASSERT_EQ(ours(form, text), by_icu(form, text)) << "character " << static_cast<uint32_t>(c);
  }
}

// A file that doubles a letter 28 times would make 256 MiB of one.
TEST(Normalizer, GrowthIsBounded) {
  const auto doubled = [](int times) {
    std::string text = "a";
    normalize(std::vector<NormalizerStep>(static_cast<size_t>(times), Replace{"a", "aa"}), text);
    return text.size();
  };
  EXPECT_EQ(doubled(16), size_t{1} << 16);
  EXPECT_THROW(doubled(17), UsageError);
  EXPECT_THROW(doubled(28), UsageError);
  std::string words(1'000'000, ' ');
  normalize({Replace{" ", "\xe2\x96\x81"}}, words);
  EXPECT_EQ(words.size(), 3'000'000u);
}

}  // namespace
}  // namespace invar::tokenizer
