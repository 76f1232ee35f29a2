#include "frontend/answer_builder.h"

#include <gtest/gtest.h>

#include <set>

#include "frontend/openai_parts.h"
#include "frontend/receipt.h"
#include "tokenizer/make_tokenizer.h"

namespace invar {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer made = Tokenizer::from_texts(make_tokenizer(2000, 1).texts, "made");
  return made;
}

std::vector<int32_t> ids_of(const std::string& text) {
  return tokenizer().encode(text, {.add_special_tokens = false});
}

// Everything that is shown of the tokens, and the builder's answer.
std::string show(AnswerBuilder& builder, const std::vector<int32_t>& tokens, FinishReason finish) {
  std::string shown;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_last = i + 1 == tokens.size();
    TokenOutput output{.token = tokens[i], .finish = is_last ? finish : FinishReason::none};
    output.logits_hash[0] = static_cast<uint8_t>(i + 1);
    shown += builder.push(output);
    if (builder.answer.finish != FinishReason::none) break;
  }
  EXPECT_EQ(builder.answer.text, shown);
  return shown;
}

TEST(AnswerBuilder, ShowsHalfACharacterOnlyWhereTheAnswerEndsInIt) {
  const std::vector<int32_t> euro = ids_of("\u20ac");
  ASSERT_GE(euro.size(), 2u);  // a token for each of its bytes
  AnswerBuilder builder(tokenizer(), Request{});
  EXPECT_EQ(builder.push({.token = euro[0]}), "");
  EXPECT_EQ(builder.push({.token = ids_of("x")[0]}), "\ufffdx");
  for (const FinishReason finish : {FinishReason::length, FinishReason::stop}) {
    AnswerBuilder cut(tokenizer(), Request{});
    EXPECT_EQ(show(cut, {euro[0]}, finish), "\ufffd");
  }
}

TEST(AnswerBuilder, AStopStringEndsItBeforeTheEngineSaysSo) {
  for (const bool include : {false, true}) {
    AnswerBuilder builder(tokenizer(), Request{.stop = {"lo w"}, .include_stop = include});
    EXPECT_EQ(show(builder, ids_of("Hello world, hello."), FinishReason::length),
              include ? "Hello w" : "Hel");
    EXPECT_EQ(builder.answer.finish, FinishReason::stop);
    EXPECT_EQ(builder.answer.stop, "lo w");
    EXPECT_LT(builder.answer.tokens.size(), ids_of("Hello world, hello.").size());
  }
  // What was held back for one that did not come is shown at the end.
  AnswerBuilder builder(tokenizer(), Request{.stop = {"world!"}});
  EXPECT_EQ(show(builder, ids_of("Hello world"), FinishReason::length), "Hello world");
  EXPECT_EQ(builder.answer.finish, FinishReason::length);
}

// vLLM's: one that is complete within the least tokens stays text; one that is completed behind
// them counts, wherever it began.
TEST(AnswerBuilder, NoStopStringEndsItWithinItsLeastTokens) {
  const std::vector<int32_t> tokens = ids_of("lo, hello, hello, hello, hello");
  std::set<size_t> ends;
  for (int least = 0; least <= std::ssize(tokens); ++least) {
    Request request{.stop = {"lo"}};
    request.params.min_tokens = least;
    AnswerBuilder builder(tokenizer(), request);
    const std::string shown = show(builder, tokens, FinishReason::length);
    std::string all, before;
    size_t count = 0;
    bool is_found = false;
    while (!is_found && count < tokens.size()) {
      before = all;
      all += tokenizer().token_bytes(tokens[count++]);
      const size_t from = before.size() < 1 ? 0 : before.size() - 1;  // it may have begun there
      is_found = static_cast<int>(count) > least && all.find("lo", from) != all.npos;
    }
    EXPECT_EQ(builder.answer.tokens.size(), count) << least;
    EXPECT_EQ(builder.answer.stop, is_found ? "lo" : "") << least;
    EXPECT_EQ(shown, is_found
                         ? all.substr(0, all.find("lo", before.size() < 1 ? 0 : before.size() - 1))
                         : all);
    ends.insert(count);
  }
  EXPECT_GT(ends.size(), 3u) << "the control: more tokens, another end";
}

TEST(AnswerBuilder, TheSpecialTokenThatEndsItIsNoText) {
  int32_t special = 0;
  while (!tokenizer().is_special(special)) ++special;
  std::vector<int32_t> tokens = ids_of("Hi");
  tokens.push_back(special);
  const std::string name(tokenizer().token_bytes(special));
  const auto text = [&](const Request& request, FinishReason finish) {
    AnswerBuilder builder(tokenizer(), request);
    return show(builder, tokens, finish);
  };
  EXPECT_EQ(text({}, FinishReason::stop), "Hi");
  EXPECT_EQ(text({.skip_special = false}, FinishReason::stop), "Hi");
  EXPECT_EQ(text({.include_stop = true, .skip_special = false}, FinishReason::stop), "Hi" + name);
  EXPECT_EQ(text({.skip_special = false}, FinishReason::length), "Hi" + name);
  EXPECT_EQ(text({}, FinishReason::length), "Hi");
}

TEST(AnswerBuilder, KeepsAMarkForEachLinkOfAReceipt) {
  AnswerBuilder builder(tokenizer(), Request{});
  show(builder, std::vector<int32_t>(2 * kReceiptLink + 1, ids_of("a")[0]), FinishReason::length);
  ASSERT_EQ(builder.answer.hash_checkpoints.size(), 2u);
  EXPECT_EQ(builder.answer.hash_checkpoints[0][0], kReceiptLink);
  EXPECT_EQ(builder.answer.hash_checkpoints[1][0], 2 * kReceiptLink);
  EXPECT_EQ(builder.answer.logits_hash[0], 2 * kReceiptLink + 1);
}

TEST(AnswerBuilder, AFailureAddsNothing) {
  AnswerBuilder builder(tokenizer(), Request{});
  builder.push({.token = ids_of("a")[0]});
  builder.push({.token = 7, .finish = FinishReason::failed, .error = "a sentence"});
  EXPECT_EQ(builder.answer.tokens, ids_of("a"));
  EXPECT_EQ(builder.answer.error, "a sentence");
  EXPECT_EQ(builder.answer.finish, FinishReason::failed);
}

// Each token belongs to one version, the last ones to the last; what stood behind them is gone.
TEST(AnswerBuilder, SaysWhichWeightsComputedWhichTokens) {
  TextAnswer answer;
  answer.tokens = {1, 2, 3, 4, 5, 6, 7};
  answer.weights = {{"a", 0}, {"b", 3}, {"c", 5}};
  answer.weights.pop_back();
  const json::Value versions = openai::weight_versions(answer);
  std::string said;
  for (const json::Value& one : versions.as_array())
    said += fmt::format("{} {} {}-{}, ", one.find("weight_version")->as_string(),
                        one.find("tokens")->as_integer(), one.find("start")->as_integer(),
                        one.find("end")->as_integer());
  EXPECT_EQ(said, "a 3 0-3, b 4 3-7, ");
  EXPECT_TRUE(openai::weight_versions(TextAnswer()).as_array().empty());
}

}  // namespace
}  // namespace invar
