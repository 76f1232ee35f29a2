// A proposer in front of another one: whatever it does not override is the other's.
#pragma once

#include <memory>
#include <utility>

#include "speculative/proposer.h"

namespace invar {

class ForwardingProposer : public Proposer {
 public:
  explicit ForwardingProposer(std::unique_ptr<Proposer> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  int32_t most_nodes() const override { return inner_->most_nodes(); }
  bool makes_branches() const override { return inner_->makes_branches(); }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    inner_->propose(requests, trees);
  }
  HiddenReader* hidden_reader() override { return inner_->hidden_reader(); }
  ArgmaxReader* argmax_reader() override { return inner_->argmax_reader(); }
  LayerSharer* layer_sharer() override { return inner_->layer_sharer(); }
  void recover() override { inner_->recover(); }
  void observe(int64_t id, int32_t proposed, int32_t accepted) override {
    inner_->observe(id, proposed, accepted);
  }
  void observe_step(int64_t rows, double seconds) override { inner_->observe_step(rows, seconds); }
  void forget(int64_t id) override { inner_->forget(id); }

  Proposer& inner() const { return *inner_; }

 private:
  const std::unique_ptr<Proposer> inner_;
};

}  // namespace invar
