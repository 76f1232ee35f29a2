#include "engine/embedder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace invar {

Embedder::Embedder(Model& model, int max_tokens, ThreadPool* threads)
    : model_(model),
      max_tokens_(max_tokens),
      runner_(model,
              {.pages = (max_tokens + kPagePlaces - 1) / kPagePlaces,
               .page_places = kPagePlaces,
               .max_rows = kRows,
               .max_logit_rows = 1,
               .max_taps = 1},
              threads) {}

std::vector<float> Embedder::embed(std::span<const int32_t> tokens) {
  if (tokens.empty() || std::ssize(tokens) > max_tokens_)
    fail_usage("expected a text of 1 to {} tokens, found {}", max_tokens_, tokens.size());
  const auto width = static_cast<size_t>(model_.spec().hidden);
  std::vector<float> sum(width, 0.0F);
  Batch batch;
  batch.sequences.resize(1);
  batch.sequences[0].pages.resize(runner_.limits().pages);
  std::iota(batch.sequences[0].pages.begin(), batch.sequences[0].pages.end(), 0);
  batch.tap_layers = {model_.spec().layers - 1};
  ForwardIo io;
  for (size_t begin = 0; begin < tokens.size(); begin += kRows) {
    const size_t rows = std::min<size_t>(kRows, tokens.size() - begin);
    batch.rows.clear();
    for (size_t r = 0; r < rows; ++r)
      batch.rows.push_back(
          {.token = tokens[begin + r], .position = static_cast<int32_t>(begin + r), .sequence = 0});
    runner_.run(batch, io);
    if (std::find(io.non_finite.begin(), io.non_finite.end(), true) != io.non_finite.end())
      fail("a key or a value of the text was not finite");
    for (size_t r = 0; r < rows; ++r)
      for (size_t d = 0; d < width; ++d) sum[d] += io.taps[r * width + d];
  }
  for (float& value : sum) {
    value /= static_cast<float>(tokens.size());
    if (!std::isfinite(value)) fail("a hidden state of the text was not finite");
  }
  return sum;
}

}  // namespace invar
