// Requests of RL stacks are answered when nothing is left of their bodies.
#include "frontend/rollout_formats.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar::rollout {
namespace {

json::Value parsed(const std::string& text) {
  return json::parse(text, "a test");
}

// The answer to a request that is gone.
json::Value shown(decltype(asked_of_sglang)* asked_of, decltype(sglang_answer)* answer_of,
                  const std::string& body, const std::string& answer) {
  const Shown shown = [&] { return asked_of(parsed(body)).shown; }();
  return answer_of(shown, parsed(answer), "v1");
}

const std::string kChoice =
    R"({"text": "a", "token_ids": [7], "prompt_token_ids": [1, 2], "logits_hash": "h",
        "finish_reason": "length", "logprobs": {"token_logprobs": [-0.5]}})";

std::string answer_of(int choices) {
  std::string all = kChoice;
  for (int i = 1; i < choices; ++i) all += ", " + kChoice;
  return R"({"id": "i", "system_fingerprint": "f", "seed": 3, "usage": {"prompt_tokens_details":
             {"cached_tokens": 2}}, "choices": [)" +
         all + "]}";
}

TEST(RolloutFormats, SglangsAnswerIsAListWhereTheRequestWasOne) {
  const auto one = shown(asked_of_sglang, sglang_answer, R"({"input_ids": [1, 2]})", answer_of(1));
  ASSERT_TRUE(one.is_object());
  EXPECT_EQ(one.find("meta_info")->find("cached_tokens")->as_integer(), 2);
  EXPECT_EQ(one.find("meta_info")->find("output_token_logprobs"), nullptr);
  const auto batch =
      shown(asked_of_sglang, sglang_answer, R"({"input_ids": [[1, 2]]})", answer_of(1));
  ASSERT_TRUE(batch.is_array());
  EXPECT_EQ(batch.as_array().at(0).find("meta_info")->find("cached_tokens")->as_integer(), 0);
  const auto several = shown(asked_of_sglang, sglang_answer,
                             R"({"text": "x", "sampling_params": {"n": 2}})", answer_of(2));
  EXPECT_EQ(several.as_array().size(), 2u);
}

// Which of them an answer would be held to, nobody could say.
TEST(RolloutFormats, FormsThatContradictEachOtherAreNotChosenFrom) {
  const auto forms = [](decltype(asked_of_sglang)* asked_of, const std::string& body) {
    return json::dump(*asked_of(parsed(body)).body.find("structured_outputs"));
  };
  EXPECT_EQ(forms(asked_of_sglang,
                  R"({"text": "x", "sampling_params": {"regex": "a", "json_schema": "{}"}})"),
            R"({"regex": "a", "json": "{}"})");  // of two kinds: refused where they are compiled
  const std::string two =
      R"({"prompts": ["x"], "structured_outputs_regex": "a", "guided_decoding_regex": )";
  EXPECT_EQ(forms(asked_of_trl, two + R"("a"})"), R"({"regex": "a"})");
  EXPECT_THROW(forms(asked_of_trl, two + R"("b"})"), UsageError);
}

TEST(RolloutFormats, TrlsAnswerHasEachPromptOnce) {
  const auto all =
      shown(asked_of_trl, trl_answer, R"({"prompts": ["a", "b"], "n": 2})", answer_of(4));
  EXPECT_EQ(all.find("prompt_ids")->as_array().size(), 2u);
  EXPECT_EQ(all.find("completion_ids")->as_array().size(), 4u);
}

TEST(RolloutFormats, AnAnswerThatLacksSomethingIsAnErrorAndNoEnd) {
  const std::string asked = R"({"input_ids": [1], "return_logprob": true})";
  EXPECT_THROW(shown(asked_of_sglang, sglang_answer, asked, "{}"), Error);
  EXPECT_THROW(shown(asked_of_sglang, sglang_answer, asked, R"({"choices": []})"), Error);
  std::string fewer = answer_of(1);
  fewer.replace(fewer.find("[-0.5]"), 6, "[]");
  EXPECT_THROW(shown(asked_of_sglang, sglang_answer, asked, fewer), Error);
}

}  // namespace
}  // namespace invar::rollout
