// Proposers that know the answers and do with them what a test asks for.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "speculative/proposer.h"

namespace invar {

using KnownAnswers = std::map<int64_t, std::vector<int32_t>>;  // by request: prompt and answer

enum class Script {
  right,       // a chain of the tokens that come
  wrong,       // a chain of others
  until_last,  // right but for the last node
  trees,       // random trees; what comes stands somewhere in them, as far as chance goes
};

class ScriptedProposer final : public Proposer {
 public:
  ScriptedProposer(Script script, const KnownAnswers& answers, int32_t nodes, int32_t vocab,
                   uint32_t seed = 1)
      : script_(script), answers_(answers), nodes_(nodes), vocab_(vocab), random_(seed) {}

  std::string_view name() const override { return "scripted"; }
  int32_t most_nodes() const override { return nodes_; }
  bool makes_branches() const override { return script_ == Script::trees; }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    for (size_t i = 0; i < requests.size(); ++i) {
      const DraftRequest& request = requests[i];
      const std::vector<int32_t>& all = answers_.at(request.id);
      const std::span<const int32_t> future =
          std::span(all).subspan(std::min(request.tokens.size(), all.size()));
      if (script_ == Script::trees)
        grow(future, request.most, trees[i]);
      else
        chain(future, request.most, trees[i]);
    }
  }
  void observe(int64_t, int32_t, int32_t accepted) override { accepted_ += accepted; }
  void forget(int64_t) override { ++forgotten_; }

  int64_t accepted_ = 0, forgotten_ = 0;

 private:
  int32_t other_than(int32_t token) const { return (token + 1) % vocab_; }

  void chain(std::span<const int32_t> future, int32_t most, DraftTree& tree) const {
    const int32_t length = std::min<int32_t>(most, static_cast<int32_t>(future.size()));
    for (int32_t i = 0; i < length; ++i) {
      const bool wrong =
          script_ == Script::wrong || (script_ == Script::until_last && i == length - 1);
      tree.push_back({wrong ? other_than(future[i]) : future[i], i - 1});
    }
  }

  // Every node hangs below a random one before it; on the path of what comes it is right half the
  // time.
  void grow(std::span<const int32_t> future, int32_t most, DraftTree& tree) {
    std::vector<int32_t> level = {};  // of a node on the path of what comes, else -1
    const int32_t size = static_cast<int32_t>(random_() % (static_cast<uint32_t>(most) + 1));
    for (int32_t node = 0; node < size; ++node) {
      const int32_t parent = static_cast<int32_t>(random_() % (node + 1)) - 1;
      const int32_t below = parent < 0 ? 0 : level[parent] < 0 ? -1 : level[parent] + 1;
      const bool may_be_right = below >= 0 && below < std::ssize(future);
      const bool right = may_be_right && random_() % 2;
      const int32_t token = right ? future[below] : static_cast<int32_t>(random_() % vocab_);
      if (child_with(tree, parent, token) >= 0) break;
      tree.push_back({token, parent});
      level.push_back(may_be_right && token == future[below] ? below : -1);
    }
  }

  Script script_;
  const KnownAnswers& answers_;
  int32_t nodes_, vocab_;
  std::mt19937 random_;
};

}  // namespace invar
