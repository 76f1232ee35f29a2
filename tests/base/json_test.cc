#include "base/json.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json_values.h"

namespace invar::json {
namespace {

TEST(Json, KeepsKeyOrderAndNumberKinds) {
  const Value v = parse(R"({"b": 1, "a": 1.0, "c": [true, null, "x\u00e9"]})", "test");
  EXPECT_EQ(v.as_object()[0].first, "b");
  EXPECT_TRUE(v.find("b")->is_integer());
  EXPECT_FALSE(v.find("a")->is_integer());
  EXPECT_EQ(dump(v), R"({"b": 1, "a": 1.0, "c": [true, null, "xé"]})");
}

TEST(Json, DoublesParseBackToTheSameBits) {
  for (const float f : {0.1f, -1.5e-38f, 3.4028235e38f, -7.2345678f, 1e10f, -21.918230056762695f}) {
    const double d = f;
    EXPECT_EQ(parse(dump(Value(d)), "test").as_number(), d);
    const double decimal = shortest(f);
    EXPECT_EQ(static_cast<float>(decimal), f);
    EXPECT_EQ(parse(dump(Value(decimal)), "test").as_number(), decimal);
  }
  EXPECT_EQ(dump(Value(double{-21.918230056762695f})), "-21.918230056762695");
  EXPECT_EQ(dump(Value(shortest(-21.918230056762695f))), "-21.91823");
  EXPECT_EQ(dump(Value(shortest(1e-6f))), "1e-06");
}

TEST(Json, WritesObjectsWithoutAValueOfThem) {
  const Value inner = Object{{"a", 1.5}, {"b", nullptr}};
  std::string out;
  ObjectWriter writer(out);
  writer.member("n") += std::to_string(3);
  append_quoted(writer.member("quo\"te"), "line\n");
  append(writer.member("inner"), inner);
  ObjectWriter(writer.member("empty")).end();
  writer.end();
  EXPECT_EQ(out,
            dump(Object{{"n", 3}, {"quo\"te", "line\n"}, {"inner", inner}, {"empty", Object()}}));
}

TEST(Json, ShowsBytesThatAreNoTextAsReplaced) {
  EXPECT_EQ(quoted("a\xa2"
                   "b\n"),
            "\"a\xef\xbf\xbd"
            "b\\n\"");
  EXPECT_EQ(excerpt(Value("\xc3")), "\"\xef\xbf\xbd\"");
  EXPECT_EQ(quoted("\xc3\xa9"), "\"\xc3\xa9\"");
}

// The message of an Error that `work` throws.
template <typename Work>
std::string refusal(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

// Hugging Face writes int(1e30) for "no limit".
TEST(Json, IntegersBeyond64BitsAreNumbers) {
  const Value v = parse(R"({"a": 1000000000000000019884624838656, "b": "99999999999999999999 \" 1",
                           "c": [-99999999999999999999,18446744073709551615, -9223372036854775808],
                           "d": 0.12345678901234567890123, "e": 1e3})",
                        "test");
  EXPECT_EQ(v.find("a")->as_number(), 1e30);
  EXPECT_TRUE(v.find("a")->is_number() && !v.find("a")->is_integer());
  EXPECT_EQ(v.find("b")->as_string(), "99999999999999999999 \" 1");
  const Array& c = v.find("c")->as_array();
  EXPECT_EQ(c[0].as_number(), -1e20);
  EXPECT_EQ(c[1].to_unsigned(), UINT64_MAX);
  EXPECT_EQ(c[1].to_integer(), std::nullopt);
  EXPECT_EQ(c[2].as_integer(), INT64_MIN);
  EXPECT_EQ(v.find("d")->as_number(), 0.12345678901234567890123);
  EXPECT_EQ(dump(c[1]), "18446744073709551615");
  EXPECT_EQ(parse(dump(v), "again"), v);
  EXPECT_EQ(Value(UINT64_MAX), c[1]);
  EXPECT_EQ(Value(uint64_t{5}), Value(5));
  const std::string digits(400, '9');
  EXPECT_EQ(refusal([&] { parse("[1, -1e999]", "x.json"); }),
            "x.json: expected numbers up to 1.8e308, found \"-1e999\"");
  EXPECT_NE(refusal([&] { parse(digits, "x.json"); }).find("1.8e308"), std::string::npos);
  for (const char* broken : {"[99999999999999999999", "99999999999999999999x", "-", "\"9999\\",
                             "[099999999999999999999]", "--99999999999999999999"})
    EXPECT_NE(refusal([&] { parse(broken, "t"); }).find("not valid JSON"), std::string::npos)
        << broken;
}

TEST(Json, AnIntegerMayBeWrittenWithAPointOrAnExponent) {
  EXPECT_EQ(parse("1e3", "t").as_integer(), 1000);
  EXPECT_EQ(parse("-5.0", "t").to_integer(), -5);
  EXPECT_EQ(parse("9007199254740992.0", "t").to_integer(), 1ll << 53);
  for (const char* other : {"1.5", "1e16", "-1e30", "\"1\"", "true", "null"})
    EXPECT_EQ(parse(other, "t").to_integer(), std::nullopt) << other;
  EXPECT_EQ(parse("-1", "t").to_unsigned(), std::nullopt);
  EXPECT_EQ(parse("1e3", "t").to_unsigned(), 1000u);
  EXPECT_EQ(dump(parse("1e3", "t")), "1000.0");  // what was written stays a number with a point
  EXPECT_EQ(refusal([] { parse("1.5", "t").as_integer(); }), "expected an integer, found 1.5");
}

TEST(Json, ManyValuesAreSeenBeforeTheyAreRead) {
  EXPECT_FALSE(has_more_values("[1,2,3,4]", 3));
  EXPECT_TRUE(has_more_values("[1,2,3,4]", 2));
  EXPECT_FALSE(has_more_values("[\"1,2,3,4\", 5]", 1));
  EXPECT_FALSE(has_more_values("[\"1\\\",2,3,4\", 5]", 1));
  EXPECT_TRUE(has_more_values("[\"1\\\\\",2,3,4]", 2));
  EXPECT_TRUE(has_more_names(R"({"a":1,"b":{"c":2}})", 2));
  EXPECT_FALSE(has_more_names(R"({"a":1,"b":{"c":2}})", 3));
  EXPECT_FALSE(has_more_names(R"({"a:::":":::"})", 1));
}

TEST(Json, MemoryOfValuesIsSeenBeforeTheyAreRead) {
  constexpr size_t kValue = sizeof(Value), kName = sizeof(Member) - kValue, kPiece = 16;
  EXPECT_EQ(parsed_bytes("7"), kValue);
  EXPECT_EQ(parsed_bytes("[[], { }]"), 3 * kValue + kPiece);
  EXPECT_EQ(parsed_bytes("[[1], [2]]"), 5 * kValue + 3 * kPiece);
  EXPECT_EQ(parsed_bytes(R"({"a,[": "b:\"{", "c": 0})"), 3 * kValue + 2 * kName + kPiece);
  EXPECT_EQ(parsed_bytes("\"" + std::string(100, 'x') + "\""), kValue + kPiece + 100);
  EXPECT_EQ(parsed_bytes("\"never closed\\"), kValue);
}

TEST(Json, ValuesAreBounded) {
  EXPECT_EQ(dump(parse("[1,[2],3]", "t", {.max_values = 5})), "[1, [2], 3]");
  EXPECT_EQ(refusal([] { parse("[1,[2],3]", "t", {.max_values = 4}); }),
            "t: expected at most 4 values of JSON, found more");
}

TEST(Json, BytesOfTextsAreCounted) {
  EXPECT_EQ(text_bytes(parse(R"({"ab": ["cde", 1, {"f": "\u00e9"}], "": null})", "a test")), 8u);
  EXPECT_EQ(text_bytes(parse("[1, true]", "a test")), 0u);
}

TEST(Json, RefusesWhatIsNotStrict) {
  EXPECT_THROW(parse("{\"a\": 1,}", "t"), Error);
  EXPECT_THROW(parse("{\"a\": 01}", "t"), Error);
  EXPECT_THROW(parse("{\"a\": 1} x", "t"), Error);
  EXPECT_THROW(parse("\"\xff\"", "t"), Error);
  EXPECT_THROW(parse("{\"a\": 1, \"a\": 2}", "t"), Error);
  EXPECT_THROW(parse(std::string(100, '[') + std::string(100, ']'), "t"), Error);
}

}  // namespace
}  // namespace invar::json
