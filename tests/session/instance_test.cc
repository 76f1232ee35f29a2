// The factory: what one struct of options makes.
#include "session/instance.h"

#include <gtest/gtest.h>

#include "../support/fixed_drafts.h"
#include "base/error.h"
#include "speculative/config.h"

namespace invar {
namespace {

InstanceOptions tiny() {
  InstanceOptions options{.model = {.model = "tiny", .load_format = "dummy:7", .threads = 1}};
  options.engine.kv_bytes = 8 << 20;
  options.engine.scheduler.max_model_len = 128;
  options.engine.scheduler.max_num_seqs = 4;
  return options;
}

struct LastHash final : OutputSink {
  Digest hash{};
  void on_token(const TokenOutput& output) override { hash = output.logits_hash; }
};

Digest answer_of(Engine& engine) {
  Request request{.id = 1, .prompt = {1, 2, 3, 1, 2, 3, 1, 2}};
  request.params.max_tokens = 30;
  request.params.seed = 3;
  engine.add(std::move(request));
  LastHash last;
  while (engine.step(last)) {
  }
  return last.hash;
}

TEST(Instance, ReplicasShareAModelAndHaveEqualRoom) {
  InstanceOptions options = tiny();
  options.replicas = 3;
  options.engine.fit_context = true;
  options.engine.scheduler.max_model_len = 0;
  options.engine.kv_bytes = 1 << 20;
  Instance instance(options);
  ASSERT_EQ(instance.replicas(), 3U);
  EXPECT_EQ(instance.threads(), 1);
  const Digest expected = answer_of(instance.engine(0));
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(&instance.engine(i).model(), &instance.model());
    EXPECT_NE(&instance.engine(i).threads(), &instance.engine(0).threads());
    EXPECT_EQ(instance.engine(i).max_model_len(), instance.engine(0).max_model_len());
    EXPECT_EQ(instance.engine(i).num_blocks(), instance.engine(0).num_blocks());
    EXPECT_EQ(answer_of(instance.engine(i)), expected);
  }
}

// Side branches of drafts have blocks beside those of sequences, in every replica.
TEST(Instance, ReplicasHaveEqualRoomForBranches) {
  InstanceOptions options = tiny();
  options.replicas = 2;
  options.speculation = fixed_drafts(R"({"method": "lookahead"})");
  Instance instance(options);
  EXPECT_GT(instance.engine(0).branch_bytes(), 0);
  EXPECT_EQ(instance.engine(1).branch_bytes(), instance.engine(0).branch_bytes());
  EXPECT_EQ(instance.engine(1).num_blocks(), instance.engine(0).num_blocks());
  options.speculation = fixed_drafts(R"({"method": "ngram"})");
  EXPECT_EQ(Instance(options, instance.shared_model()).engine(1).branch_bytes(), 0);
}

TEST(Instance, DraftsAsItsOptionsSay) {
  Instance plain(tiny());
  InstanceOptions options = tiny();
  options.speculation = fixed_drafts(R"({"method": "ngram", "prompt_lookup_min": 1})");
  Instance drafting(options, plain.shared_model());
  EXPECT_EQ(answer_of(drafting.engine()), answer_of(plain.engine()));
}

TEST(Instance, SaysWhetherAModelIsTheOneThatOptionsAskFor) {
  InstanceOptions options = tiny();
  const auto model = open_model(options);
  options.model.threads = 2;
  options.engine.scheduler.policy = "fcfs";
  EXPECT_TRUE(is_loaded_for(*model, options));
  options.model.arithmetic = "hopper";
  EXPECT_FALSE(is_loaded_for(*model, options));
  options = tiny();
  options.speculation = fixed_drafts(R"({"method": "mtp"})");
  EXPECT_FALSE(is_loaded_for(*model, options)) << "the module that drafts is loaded with it";
}

TEST(Instance, RefusesReplicasThatCannotBe) {
  InstanceOptions options = tiny();
  options.replicas = 0;
  EXPECT_THROW(Instance{options}, UsageError);
  options.replicas = 2;
  options.model.device = "cuda";
  EXPECT_THROW(Instance{options}, UsageError);
}

}  // namespace
}  // namespace invar
