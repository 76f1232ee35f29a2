// From the body of a request to its entry in the journal and the requests of its answers.
#include "server/admission.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "server/errors.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::server {
namespace {

struct Facts final : Backend {
  void start(BackendSink&) override {}
  void stop() override {}
  BackendFacts facts() const override {
    return {.identity = arithmetic, .vocab = 512, .max_model_len = 64};
  }
  BackendStats stats() const override { return {}; }
  void submit(Request) override {}
  void cancel(int64_t) override {}
  void take_weights(const std::string&) override {}
  std::string arithmetic = "invar-1/test";
};

class Admissions : public testing::Test {
 protected:
  Admitted admit(const std::string& body, const std::string& path = "/v1/completions") {
    HttpRequest http{.method = "POST", .path = path, .body = body};
    return admission_.admit(http, "owner", parse_body(body), std::nullopt,
                            std::make_shared<HeldSlots>(slots_, "owner"));
  }
  int status(const std::string& body) {
    try {
      admit(body);
    } catch (const ApiError& error) {
      return error.status;
    } catch (const UsageError&) {
      return 400;
    }
    return 200;
  }

  const Tokenizer tokenizer_ = Tokenizer::from_texts(make_tokenizer(512, 1).texts, "made");
  const ServedModel model_{.names = {"m", "alias"}, .tokenizer = &tokenizer_};
  Facts backend_;
  AdmissionSlots slots_{8, 1 << 20, 1};
  const Admission admission_{model_, backend_};
};

TEST_F(Admissions, EachChoiceOfEachPromptIsARequest) {
  const Admitted one = admit(R"({"prompt": [[1, 2], [3]], "n": 2, "seed": 5, "max_tokens": 4})");
  ASSERT_EQ(one.requests.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(one.requests[i].choice, static_cast<int32_t>(i % 2));
    EXPECT_EQ(one.requests[i].prompt.get(),
              i < 2 ? std::vector<int32_t>({1, 2}) : std::vector<int32_t>({3}));
    EXPECT_EQ(one.requests[i].params.seed, 5u);
  }
  EXPECT_EQ(one.entry.owner, "owner");
  EXPECT_EQ(one.entry.arithmetic, "invar-1/test");
  EXPECT_EQ(slots_.taken(), 4u);
}

// The journal has the parameters in their one form, and no other place has to check them.
TEST_F(Admissions, ParametersAreCheckedHere) {
  const Admitted one =
      admit(R"({"prompt": [1], "max_tokens": 4, "top_k": -1, "stop_token_ids": [9, 3]})");
  EXPECT_TRUE(one.requests[0].params_are_checked);
  EXPECT_EQ(one.entry.params, one.requests[0].params);
  EXPECT_EQ(one.entry.params.top_k, 0);
  EXPECT_EQ(one.entry.params.stop_token_ids, (std::vector<int32_t>{3, 9}));
  EXPECT_EQ(status(R"({"prompt": [1], "top_p": 2})"), 400);
  EXPECT_EQ(status(R"({"prompt": [1], "stop_token_ids": [512]})"), 400);
}

TEST_F(Admissions, WhatIsLeftOpenIsDrawnAndKept) {
  const std::string body = R"({"prompt": [1, 2, 3], "max_tokens": 4})";
  const Admitted first = admit(body), second = admit(body);
  EXPECT_NE(first.entry.id, second.entry.id);
  EXPECT_NE(first.entry.params.seed, second.entry.params.seed);
  const Admitted again = admission_.readmit(first.entry);
  EXPECT_EQ(again.requests[0].params, first.requests[0].params);
  EXPECT_EQ(again.requests[0].prompt, first.requests[0].prompt);
}

TEST_F(Admissions, AnAnswerOfAnotherArithmeticIsNotMadeAgain) {
  const Admitted one = admit(R"({"prompt": [1], "max_tokens": 4})");
  backend_.arithmetic = "invar-1/other";
  try {
    admission_.readmit(one.entry);
    FAIL() << "it would be another answer";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 409);
  }
}

TEST_F(Admissions, WhatCannotBeAnsweredIsRefused) {
  EXPECT_EQ(status(R"({"prompt": [1], "model": "alias"})"), 200);
  EXPECT_EQ(status(R"({"prompt": [1], "model": "nobody"})"), 404);
  EXPECT_EQ(status(R"({"prompt": [1], "n": 9})"), 400) << "more than there are slots";
  EXPECT_EQ(status(R"({"prompt": [1], "max_tokens": 64})"), 400) << "beyond the context";
  EXPECT_EQ(slots_.taken(), 0u) << "who is refused holds nothing";
  const auto held = std::make_shared<HeldSlots>(slots_, "other");
  held->insist_on(8);
  EXPECT_EQ(status(R"({"prompt": [1]})"), 429);
}

}  // namespace
}  // namespace invar::server
