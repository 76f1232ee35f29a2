#include "server/errors.h"

#include <gtest/gtest.h>

namespace invar::server {
namespace {

struct Found {
  std::string param, code;
  bool operator==(const Found&) const = default;
};

Found refused(const std::string& sentence, const std::string& body) {
  const ApiError error = refusal_of(sentence, json::parse(body, "a body"));
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.message, sentence);
  return {error.param, error.code};
}

TEST(Errors, NameTheFieldAndWhatIsWrongWithIt) {
  const std::string body = R"({"model": "m", "prompt": "x", "temperature": "hot", "stop": 3, "n": 2,
                               "max_tokens": 4, "tools": []})";
  EXPECT_EQ(refused("expected temperature as a number, found a string", body),
            (Found{"temperature", "invalid_type"}));
  EXPECT_EQ(refused("temperature must be in [0, 10000], not 20000", body),
            (Found{"temperature", "invalid_value"}));
  EXPECT_EQ(refused("expected a stop string in stop of at most 1024 bytes, found 2000", body),
            (Found{"stop", "invalid_value"}));
  EXPECT_EQ(refused("n must be 1 with temperature 0, not 2: all answers are equal", body),
            (Found{"n", "invalid_value"}));
  EXPECT_EQ(refused("the field \"tools\" is not supported: expected null, found []", body),
            (Found{"tools", "unsupported_parameter"}));
  EXPECT_EQ(refused("expected \"messages\" in \"body\"", body),
            (Found{"messages", "missing_required_parameter"}));
  EXPECT_EQ(refused("expected model as a text, found an array", R"({"model": []})"),
            (Found{"model", "invalid_type"}));
}

TEST(Errors, AWordThatIsNoFieldIsNone) {
  const std::string body = R"({"model": "m", "prompt": "x", "user": "me"})";
  EXPECT_EQ(refused("expected at most 64 values, found more for temperature", body), Found());
  EXPECT_EQ(refused("what the model of this user has is unknown", body), Found());
  EXPECT_EQ(refused("expected an object, found the prompt", "[]"), Found());
}

}  // namespace
}  // namespace invar::server
