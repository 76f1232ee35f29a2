#include "server/model_card.h"

#include <gtest/gtest.h>

#include "server/admission.h"
#include "tokenizer/make_tokenizer.h"

namespace invar::server {
namespace {

TEST(ModelCard, CapabilitiesAreWhatTheModelHas) {
  const Tokenizer tokenizer = Tokenizer::from_texts(make_tokenizer(512, 1).texts, "made");
  ServedModel model{.names = {"m"}, .card = {.family = "llama"}, .tokenizer = &tokenizer};
  using Words = std::vector<std::string>;
  EXPECT_EQ(capabilities_of(model), Words{"completion"});
  model.thought_format = ThoughtFormat::qwen3;
  EXPECT_EQ(capabilities_of(model), (Words{"completion", "thinking"}));
  model.numbers.has_head = false;
  EXPECT_EQ(capabilities_of(model), (Words{"thinking", "embedding"}));
}

}  // namespace
}  // namespace invar::server
