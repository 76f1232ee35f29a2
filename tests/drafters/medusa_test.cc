// Medusa heads: both layouts are read, heads see the right row, answers stay.
#include "drafters/medusa.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "engine/engine.h"
#include "medusa_case.h"
#include "model/families/make_model.h"
#include "speculative/forwarding_proposer.h"
#include "weights/checkpoint_writer.h"

namespace invar {
namespace {

constexpr uint64_t kSeed = 7;

// Each says again what the target said.
Tensors echoing_heads(const Model& model, int heads) {
  return made_heads(model.spec(), TargetTables(model).head(), heads);
}

class MedusaTest : public testing::Test {
 protected:
  MedusaTest() : model_({.model = "tiny", .load_format = "dummy:7", .threads = 2}) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~MedusaTest() override { std::filesystem::remove_all(directory_); }

  void write(const Tensors& tensors) { write_checkpoint(directory_, tensors, model_.pool()); }
  std::unique_ptr<Medusa> medusa(TreeShape shape = {}) {
    return std::make_unique<Medusa>(directory_, std::move(shape), model_, model_.pool());
  }

  const std::string directory_ = testing::TempDir() + "medusa_test_" + std::to_string(getpid());
  Model model_;
};

// Looks at what the inner proposer drafts.
class Watcher final : public ForwardingProposer {
 public:
  Watcher(std::unique_ptr<Proposer> inner, int64_t& echoes, int64_t& drafts)
      : ForwardingProposer(std::move(inner)), echoes_(echoes), drafts_(drafts) {}
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    inner().propose(requests, trees);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (trees[i].empty()) continue;
      ++drafts_;
      echoes_ += trees[i][0].token == requests[i].tokens.back();
    }
  }

 private:
  int64_t &echoes_, &drafts_;
};

std::map<int64_t, std::vector<int32_t>> answers(Model& model, std::unique_ptr<Proposer> proposer) {
  struct Keep final : OutputSink {
    void on_token(const TokenOutput& output) override {
      answers[output.request].push_back(output.token);
    }
    std::map<int64_t, std::vector<int32_t>> answers;
  } sink;
  EngineOptions options{.block_size = 32, .kv_bytes = 16 << 20};
  options.scheduler.max_model_len = 256;
  Engine engine(model, options, nullptr, std::move(proposer));
  for (int id = 1; id < 5; ++id) {
    Request request{.id = id};
    for (int i = 0; i < 7 + 30 * id; ++i) request.prompt.edit().push_back((i * 11 + id) % 500);
    request.params.max_tokens = 20;
    request.params.temperature = id < 3 ? 0.0 : 0.9;
    engine.add(std::move(request));
  }
  while (engine.step(sink)) {
  }
  return sink.answers;
}

TEST_F(MedusaTest, HeadsSeeTheLastRowThatTheTargetComputed) {
  write(echoing_heads(model_, 3));
  const auto plain = answers(model_, nullptr);
  EXPECT_EQ(medusa()->num_heads(), 3);
  int64_t echoes = 0, drafts = 0;
  EXPECT_EQ(answers(model_, std::make_unique<Watcher>(medusa(), echoes, drafts)), plain);
  EXPECT_GT(drafts, 40);
  // Greedy ones always say the last token again; sampled ones have other noise one token further.
  EXPECT_GE(echoes, drafts / 2 - 2);
  const TreeShape tree = shape_of_paths({{0}, {0, 0}, {0, 1}, {1}, {1, 2}, {0, 0, 0}, {2}});
  EXPECT_EQ(answers(model_, medusa(tree)), plain);
}

TEST_F(MedusaTest, WhatDoesNotFitIsRefused) {
  const auto refusal = [&](TreeShape shape = {}) -> std::string {
    try {
      medusa(std::move(shape));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal().find("found none of them"), std::string::npos);
  write_file_atomically(directory_ + "/medusa_lm_head.pt", "x");
  EXPECT_NE(refusal().find("a pickle, which can run code and is not read"), std::string::npos);
  Tensors tensors = echoing_heads(model_, 1);
  write(tensors);
  EXPECT_NE(refusal(chain_shape(2)).find("expected drafts of at most 1 levels"), std::string::npos);
  EXPECT_EQ(refusal(), "");
  std::filesystem::remove(directory_ + "/model.safetensors");
  tensors.add("lm_heads.0.weight", {3, 2}, std::vector<bf16_t>(6));
  write(tensors);
  EXPECT_NE(refusal().find("expected shape [512, "), std::string::npos);
}

}  // namespace
}  // namespace invar
