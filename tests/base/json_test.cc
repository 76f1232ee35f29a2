#include "base/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar::json {
namespace {

TEST(Json, KeepsKeyOrderAndNumberKinds) {
  const Value v = parse(R"({"b": 1, "a": 1.0, "c": [true, null, "x\u00e9"]})", "test");
  EXPECT_EQ(v.as_object()[0].first, "b");
  EXPECT_TRUE(v.find("b")->is_integer());
  EXPECT_FALSE(v.find("a")->is_integer());
  EXPECT_EQ(dump(v), R"({"b": 1, "a": 1.0, "c": [true, null, "xé"]})");
}

TEST(Json, FloatsParseBackToTheSameBits) {
  for (const float f : {0.1f, -1.5e-38f, 3.4028235e38f, -7.2345678f, 1e10f}) {
    const double d = f;
    const Value back = parse(dump(Value(d)), "test");
    EXPECT_EQ(static_cast<float>(back.as_number()), f);
  }
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
