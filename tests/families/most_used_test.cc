// 26 of the most downloaded text models: what their published config.json asks for is computed, or
// refused in one sentence that says what is missing. most_used.json has the configurations, and the
// downloads of a month as pages of the Hugging Face Hub showed them, with the time when they did
// (2026-09-17: the list in huggingface.co/datasets/gemmozero/ai-hf-trending-2026). The last two are
// what public repositories show of them, without images.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/families/families.h"

namespace invar {
namespace {

// Empty: it opens.
std::string refusal_of(const json::Value& config) {
  try {
    parse_model_config(config, {}, "DIR");
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(MostUsed, AreOpenedOrRefusedInOneSentence) {
  const json::Value models = json::parse_file(MOST_USED);
  size_t opened = 0;
  for (const json::Value& model : models.as_array()) {
    const std::string name = model.find("name")->as_string();
    const std::string refusal = refusal_of(*model.find("config"));
    fmt::print("{:45} {:6} {:10} {}\n", name, model.find("downloads")->as_string(),
               model.find("seen")->as_string(), refusal.empty() ? "opens" : refusal);
    opened += refusal.empty() ? 1 : 0;
    EXPECT_EQ(refusal.find('\n'), std::string::npos) << name;
    if (!refusal.empty()) {
      EXPECT_TRUE(refusal.starts_with("DIR/config.json: ")) << name << ": " << refusal;
    }
  }
  fmt::print("{} of {} open\n", opened, models.as_array().size());
  EXPECT_EQ(models.as_array().size(), 26U);
  EXPECT_EQ(opened, 24U);
}

// The control: nothing is passed over.
TEST(MostUsed, AKeyThatNobodyKnowsIsRefused) {
  const json::Value models = json::parse_file(MOST_USED);
  json::Value config = *models.as_array()[0].find("config");
  ASSERT_EQ(refusal_of(config), "");
  config.set("attention_form", "another");
  EXPECT_NE(refusal_of(config).find("attention_form"), std::string::npos);
}

// The key that Qwen3.8 added: the curve of the gates behind states.
TEST(MostUsed, GatesOfAnotherCurveAreRefused) {
  const json::Value models = json::parse_file(MOST_USED);
  json::Value config = *models.as_array().back().find("config");
  json::Value text = *config.find("text_config");
  ASSERT_EQ(*text.find("output_gate_type"), json::Value("swish"));
  text.set("output_gate_type", "sigmoid");
  config.set("text_config", text);
  EXPECT_NE(refusal_of(config).find("\"output_gate_type\": only \"silu\" is implemented, found "
                                    "\"sigmoid\""),
            std::string::npos)
      << refusal_of(config);
}

}  // namespace
}  // namespace invar
