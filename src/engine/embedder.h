// One vector for a text: the mean of its positions' final hidden states.
#pragma once

#include <span>
#include <vector>

#include "engine/model_runner.h"

namespace invar {

class Embedder {
 public:
  // Takes memory for the keys and values of one text of `max_tokens`. The model outlives it, and
  // nobody else may use `threads` (null: the model's own) while `embed` does.
  Embedder(Model& model, int max_tokens, ThreadPool* threads = nullptr);

  // D numbers. With h_t the residual stream behind the last layer at position t (before the final
  // norm), in f32: acc = +0; acc = acc + h_t, t ascending; then acc / T. A function of the tokens
  // alone. Throws UsageError for no tokens or too many, Error where a key, a value or a hidden
  // state is not finite.
  std::vector<float> embed(std::span<const int32_t> tokens);

 private:
  static constexpr int kPagePlaces = 64, kRows = 256;

  Model& model_;
  int max_tokens_;
  ModelRunner runner_;
};

}  // namespace invar
