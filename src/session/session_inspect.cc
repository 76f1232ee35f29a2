// The public API over an instance: what stands at positions of a text, before it is sampled from.
#include <algorithm>

#include "base/error.h"
#include "engine/executor.h"
#include "session/session_impl.h"

namespace invar {

namespace {

constexpr int32_t kRows = 512;  // of a step
constexpr int32_t kBlock = 64;

void expect_ascending(std::span<const int32_t> numbers, int64_t end, const char* what) {
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] < 0 || numbers[i] >= end || (i > 0 && numbers[i] <= numbers[i - 1]))
      fail_usage("expected ascending {} from 0 to {}, found {} as number {}", what, end - 1,
                 numbers[i], i);
}

// Takes what a step leaves at the positions of `out` that are its rows.
class Taker {
 public:
  Taker(Inspection& out, std::span<const int32_t> positions, size_t vocab, size_t hidden)
      : out_(out), positions_(positions), vocab_(vocab), hidden_(hidden) {}

  // The positions among rows [begin, end), and from which number on.
  std::span<const int32_t> of(int32_t begin, int32_t end) {
    first_ = std::ranges::lower_bound(positions_, begin) - positions_.begin();
    return positions_.subspan(
        first_, std::ranges::lower_bound(positions_, end) - positions_.begin() - first_);
  }
  void take_logits(int64_t at, std::span<const float> logits) {
    std::ranges::copy(logits, out_.logits.begin() + (first_ + at) * vocab_);
  }
  void take_hidden(std::span<const int32_t> here, int32_t begin, int32_t rows, size_t layers,
                   std::span<const float> hidden) {
    for (size_t layer = 0; layer < layers; ++layer)
      for (size_t i = 0; i < here.size(); ++i)
        std::ranges::copy(hidden.subspan((layer * rows + here[i] - begin) * hidden_, hidden_),
                          out_.hidden.begin() + (layer * positions_.size() + first_ + i) * hidden_);
  }

 private:
  Inspection& out_;
  const std::span<const int32_t> positions_;
  const size_t vocab_, hidden_;
  size_t first_ = 0;
};

}  // namespace

Inspection Session::inspect(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                            std::span<const int32_t> layers) {
  const auto count = static_cast<int32_t>(tokens.size());
  if (count == 0 || count > max_model_len())
    fail_usage("expected 1 to {} tokens to inspect, found {}", max_model_len(), tokens.size());
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocabulary_size())
      fail_usage("expected tokens from 0 to {}, found {}", vocabulary_size() - 1, token);
  expect_ascending(positions, count, "positions");
  expect_ascending(layers, this->layers(), "layers");
  const auto vocab = static_cast<size_t>(vocabulary_size()),
             hidden = static_cast<size_t>(hidden_size());
  Inspection out{.logits = std::vector<float>(positions.size() * vocab),
                 .hidden = std::vector<float>(layers.size() * positions.size() * hidden)};
  Taker taker(out, positions, vocab, hidden);
  const Impl::Awake at = impl_->awake();
  at->loop.between_steps([&](Engine& engine) {
    Executor executor(engine.model(), {.blocks = count / kBlock + 1,
                                       .block_size = kBlock,
                                       .max_rows = std::min(count, kRows),
                                       .max_aux_layers = static_cast<int32_t>(layers.size())});
    BatchSequence own{.cell = 0};
    for (int32_t i = 0; i * kBlock < count; ++i) own.blocks.push_back(i);
    for (int32_t begin = 0; begin < count; begin += kRows) {
      const int32_t end = std::min(begin + kRows, count);
      Batch batch{.sequences = {own}, .aux_layers = {layers.begin(), layers.end()}};
      for (int32_t i = begin; i < end; ++i)
        batch.rows.push_back({tokens[static_cast<size_t>(i)], i, 0});
      const std::span<const int32_t> here = taker.of(begin, end);
      for (const int32_t position : here) batch.logit_rows.push_back(position - begin);
      ForwardIo io;
      io.take_logits = [&](int64_t first, std::span<const float> logits) {
        taker.take_logits(first, logits);
      };
      executor.run(batch, io);
      if (std::ranges::find(io.non_finite, true) != io.non_finite.end())
        fail("a key, a value or a logit was not finite");
      taker.take_hidden(here, begin, end - begin, layers.size(), io.aux_hidden);
    }
  });
  return out;
}

}  // namespace invar
