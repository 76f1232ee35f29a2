#include "sampling/device_sampler.h"

namespace invar {

bool DeviceSampler::can(const SampleInput& in) {
  const SamplingParams& p = *in.params;
  return in.allowed.empty() && in.generated >= p.min_tokens && p.logit_bias.empty() &&
         !p.has_penalties() && p.min_p == 0.0 && p.top_k == 0 && p.top_p == 1.0;
}

std::span<const Drawn> DeviceSampler::sample(const float* logits, int64_t vocab,
                                             std::span<const SampleInput> rows) {
  if (rows_.size() < rows.size()) {
    rows_ = {gpu_, rows.size(), "the rows of a draw"};
    tokens_ = {gpu_, rows.size(), "the rows of a draw"};
  }
  host_rows_.clear();
  for (const SampleInput& in : rows)
    host_rows_.push_back({.seed = in.params->seed,
                          .position = static_cast<uint32_t>(in.position),
                          .choice = static_cast<uint32_t>(in.choice),
                          .temperature = static_cast<float>(in.params->temperature)});
  host_tokens_.resize(rows.size());
  gpu_.upload(rows_.data(), host_rows_.data(), rows.size() * sizeof(cuda::DrawRow));
  cuda::draw(logits, vocab, rows_.data(), std::ssize(rows), tokens_.data());
  gpu_.download(host_tokens_.data(), tokens_.data(), rows.size() * sizeof(int32_t));

  drawn_.clear();
  for (const int32_t token : host_tokens_) {
    Drawn drawn{.token = token};
    if (token == cuda::kDrewNotANumber) drawn = {.error = sampling::kNotANumber};
    if (token == cuda::kDrewNothingAllowed) drawn = {.error = sampling::kNothingAllowed};
    drawn_.push_back(drawn);
  }
  return drawn_;
}

}  // namespace invar
