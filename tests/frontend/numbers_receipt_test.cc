#include "frontend/numbers_receipt.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar {
namespace {

NumbersReceipt receipt() {
  return {.id = "dec_1",
          .created = 5,
          .name = "m",
          .context = 100,
          .model = {.arithmetic = "invar-1/portable"},
          .endpoint = "/v1/decisions",
          .body = "{}"};
}

TEST(NumbersReceiptTest, OneNumberIsItsDecimalAndSeveralAreTheirDigest) {
  EXPECT_EQ(numbers_text({-0.5F}), "-0.5");
  EXPECT_EQ(numbers_text({0.1F}), "0.10000000149011612");
  // SHA-256 of the bytes 0000803f 00000040.
  EXPECT_EQ(numbers_text({1, 2}),
            "b9c80b5adeca450753a16950c3cc655d271f7bef7a485bc83f112b72fef21d37");
  EXPECT_NE(numbers_text({1, 2}), numbers_text({2, 1}));
}

TEST(NumbersReceiptTest, ReadsWhatItWrites) {
  const ReceiptKey key;
  const json::Value value = signed_receipt(receipt(), {{-1}, {-2}}, key);
  const NumbersReceipt read = numbers_receipt_from(value);
  EXPECT_EQ(to_json(read), value);
  EXPECT_TRUE(is_signed(read));
  EXPECT_TRUE(is_numbers_receipt(value));
  EXPECT_EQ(read.numbers, (std::vector<std::string>{"-1", "-2"}));
  NumbersReceipt other = read;
  other.numbers[1] = "-3";
  EXPECT_FALSE(is_signed(other));
}

TEST(NumbersReceiptTest, AnotherReceiptIsNone) {
  const ReceiptKey key;
  const json::Value value = signed_receipt(receipt(), {{-1}}, key);
  for (const auto& [name, member] : value.as_object()) {
    json::Value fewer = json::Object();
    for (const auto& [other, kept] : value.as_object())
      if (other != name) fewer.set(other, kept);
    EXPECT_THROW(numbers_receipt_from(fewer), Error) << name;
  }
  json::Value more = value;
  more.set("choice", 0);
  EXPECT_THROW(numbers_receipt_from(more), Error);
  EXPECT_THROW(receipt_from(value), Error);
}

}  // namespace
}  // namespace invar
