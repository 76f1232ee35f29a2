#include "speculative/config.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace invar {
namespace {

std::string refusal(const std::string& json) {
  try {
    parse_speculative_config(json);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(SpeculativeConfig, IsVllmsJson) {
  const auto ngram = parse_speculative_config(
      R"({"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 4})");
  EXPECT_EQ(ngram.method, DraftMethod::ngram);
  EXPECT_EQ(ngram.num_speculative_tokens, 7);
  EXPECT_EQ(ngram.prompt_lookup_min, 4) << "one limit alone gives the other";
  EXPECT_EQ(parse_speculative_config(R"({"model": "[ngram]"})").method, DraftMethod::ngram);
  const auto draft = parse_speculative_config(
      R"({"model": "models/draft", "speculative_token_tree": "[(0,), (0, 0), (1,)]"})");
  EXPECT_EQ(draft.method, DraftMethod::draft_model);
  EXPECT_EQ(draft.model, "models/draft");
  EXPECT_EQ(draft.tree, shape_of_paths({{0}, {0, 0}, {1}}));
  EXPECT_EQ(
      parse_speculative_config(R"({"model": "d", "speculative_token_tree": [[0], [0, 0], [1]]})"),
      parse_speculative_config(
          R"({"model": "d", "speculative_token_tree": "[(0,), (0, 0), (1,)]"})"));
  const auto eagle =
      parse_speculative_config(R"({"method": "eagle3", "model": "d", "eagle_topk": 4})");
  EXPECT_EQ(eagle.method, DraftMethod::eagle3);
  EXPECT_EQ(eagle.eagle_topk, 4);
  EXPECT_FALSE(eagle.rejection);
  EXPECT_TRUE(eagle.adaptive) << "drafts that do not pay are not made, unless they are asked for";
  EXPECT_FALSE(parse_speculative_config(R"({"method": "ngram", "adaptive": false})").adaptive);
  EXPECT_TRUE(
      parse_speculative_config(R"({"method": "ngram", "acceptance": "rejection"})").rejection);
  EXPECT_EQ(parse_speculative_config(R"({"method": "swift", "skip_layers": [1, 3]})").skip_layers,
            (std::vector<int32_t>{1, 3}));
  EXPECT_FALSE(with_short_flags("", "", "", 0).is_on());
  EXPECT_EQ(with_short_flags("", "early_exit", "", 3),
            parse_speculative_config(R"({"method":"early_exit","num_speculative_tokens":3})"));
}

TEST(SpeculativeConfig, RefusalsSayWhatWasExpected) {
  EXPECT_EQ(refusal(R"({"method": "magic"})"),
            "speculative-config: expected a \"method\" of ngram, suffix, lookahead, draft_model, "
            "early_exit, swift, mtp, medusa, eagle, eagle3, found \"magic\"");
  EXPECT_EQ(
      refusal(R"({"method": "suffix", "prompt_lookup_min": 3})"),
      "speculative-config: the key \"prompt_lookup_min\" is not known for the method suffix; "
      "known are acceptance, adaptive, disable_by_batch_size, method, model, "
      "num_speculative_tokens, suffix_decoding_corpus_tokens, suffix_decoding_max_spec_factor, "
      "undrafted_slowdown");
  EXPECT_EQ(refusal(R"({"method": "ngram", "posterior_threshold": 0.09})"),
            "speculative-config: the key \"posterior_threshold\" is not supported: a draft is "
            "accepted where it is the target's own sample, so that answers stay as they are");
  EXPECT_EQ(refusal(R"({"method": "ngram", "num_speculative_tokens": 65})"),
            "speculative-config: \"num_speculative_tokens\": expected an integer from 1 to 64, "
            "found 65");
  EXPECT_EQ(refusal(R"({"method": "draft_model"})"),
            "speculative-config: expected a \"model\", the directory of the drafter, for the "
            "method draft_model");
  EXPECT_EQ(refusal(R"({"method": "mtp", "model": "x"})"),
            "speculative-config: the method mtp has no \"model\" of its own, found \"x\"");
  EXPECT_EQ(refusal(R"({"method": "ngram", "acceptance": "typical"})"),
            "speculative-config: \"acceptance\": expected coupled or rejection, found \"typical\"");
  EXPECT_NE(refusal(R"({"method": "swift", "skip_layers": [2, 1]})")
                .find("\"skip_layers\": expected an ascending list of layers from 1 on, found"),
            std::string::npos);
  EXPECT_EQ(refusal(R"({"method": "eagle3", "model": "d", "eagle_topk": 17})"),
            "speculative-config: \"eagle_topk\": expected an integer from 1 to 16, found 17");
  EXPECT_NE(refusal(R"({"method": "mtp", "draft_confidence": 1.5})").find("from 0 to 1"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"method": "ngram", "draft_confidence": 0.5})").find("is not known"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"method": "eagle3", "model": "d", "eagle_topk": 2,)"
                    R"( "draft_confidence": 0.5})")
                .find("is for chains"),
            std::string::npos);
  for (const char* share : {"0", "0.5", "1"})
    EXPECT_EQ(refusal(R"({"method": "eagle3", "model": "d", "draft_confidence": )" +
                      std::string(share) + "}"),
              "");
  EXPECT_EQ(
      refusal(R"({"method": "eagle3", "model": "d", "eagle_depth": 3})"),
      "speculative-config: \"eagle_depth\" is of trees and needs an \"eagle_topk\" above 1; a "
      "chain has num_speculative_tokens levels");
  EXPECT_EQ(refusal(R"({"method": "eagle3", "model": "d", "eagle_topk": 2, "eagle_depth": 3})"),
            "");
  EXPECT_EQ(refusal(R"({"method": "lookahead", "num_speculative_tokens": 3})"),
            "speculative-config: \"num_speculative_tokens\" is not known for the method lookahead, "
            "whose drafts have (lookahead_window + lookahead_guesses) * (lookahead_ngram - 1) "
            "tokens");
  EXPECT_EQ(refusal(R"({"method": "ngram", "adaptive": false, "undrafted_slowdown": 0.1})"),
            "speculative-config: \"undrafted_slowdown\" needs \"adaptive\": true");
  EXPECT_EQ(refusal(R"({"method": "ngram", "undrafted_slowdown": 0.1})"), "");
  EXPECT_EQ(refusal("[1]"), "speculative-config: expected a JSON object, found an array");
  EXPECT_NE(refusal("{"), "");
  EXPECT_NE(refusal(R"({"model": "d", "speculative_token_tree": "[(0"})"), "");
  EXPECT_EQ(refusal(R"({"model": "d", "speculative_token_tree": "[(0,), (-1,)]"})"),
            "speculative-config: \"speculative_token_tree\": expected a list of paths of ranks "
            "from 0 to 63, such as [(0,), (0, 0), (1,)], found \"[(0,), (-1,)]\"");
  EXPECT_EQ(refusal(R"({"model": "d", "speculative_token_tree": [[0], [1, 0]]})"),
            "expected the path above (1, 0) in the token tree, found none");
  EXPECT_THROW(with_short_flags(R"({"method":"ngram"})", "suffix", "", 0), UsageError);
}

TEST(TreeShape, TheTrunkComesFirst) {
  const TreeShape shape = shape_of_paths({{1}, {0}, {1, 0}, {0, 1}, {0, 0}});
  EXPECT_EQ(shape, (TreeShape{{-1, 0}, {0, 0}, {-1, 1}, {0, 1}, {2, 0}}));
  EXPECT_EQ(levels_of(shape), (std::vector<int32_t>{1, 2, 1, 2, 2}));
  EXPECT_EQ(ranks_below(shape), (std::vector<int32_t>{2, 2, 0, 1, 0, 0}));
  EXPECT_EQ(chain_shape(3), shape_of_paths({{0, 0, 0}, {0}, {0, 0}}));
  EXPECT_THROW(shape_of_paths({}), UsageError);
  EXPECT_THROW(shape_of_paths({{0}, {0}}), UsageError);
  EXPECT_THROW(shape_of_paths({{}}), UsageError);
  EXPECT_THROW(shape_of_paths(std::vector<std::vector<int32_t>>(65, {0})), UsageError);
}

}  // namespace
}  // namespace invar
