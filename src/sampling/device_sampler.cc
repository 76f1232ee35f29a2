#include "sampling/device_sampler.h"

#include "base/check.h"

namespace invar {

DeviceSampler::DeviceSampler(Operation<SampleParams> operation, const Execution& on, int max_rows)
    : operation_(operation), on_(on) {
  const char* what = "the rows that are sampled";
  const size_t rows = static_cast<size_t>(max_rows);
  rows_ = {*on.device, rows, what};
  tokens_ = {*on.device, rows, what};
  host_rows_ = {*on.device, rows, what};
  host_tokens_ = {*on.device, rows, what};
}

bool DeviceSampler::can(const SampleInput& in) {
  const SamplingParams& p = *in.params;
  return in.allowed.empty() && in.generated >= p.min_tokens && p.logit_bias.empty() &&
         !p.has_penalties() && !p.has_exclusions() && p.min_p == 0.0 && p.top_k == 0 &&
         p.top_p == 1.0;
}

std::span<const Sampled> DeviceSampler::sample(const float* logits, int64_t vocab,
                                               std::span<const SampleInput> rows) {
  CHECK(rows.size() <= host_rows_.size(), "more rows than the sampler has room for");
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleInput& in = rows[i];
    host_rows_.data()[i] = {.seed = in.params->seed,
                            .position = static_cast<uint32_t>(in.position),
                            .choice = static_cast<uint32_t>(in.choice),
                            .temperature = static_cast<float>(in.params->temperature)};
  }
  Stream& stream = *on_.stream;
  stream.upload(rows_.data(), host_rows_.data(), rows.size() * sizeof(SampledRow));
  on_.run(operation_, SampleParams{.logits = logits,
                                   .vocab = vocab,
                                   .of = rows_.data(),
                                   .rows = std::ssize(rows),
                                   .tokens = tokens_.data()});
  stream.download(host_tokens_.data(), tokens_.data(), rows.size() * sizeof(int32_t));
  stream.wait();

  sampled_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t token = host_tokens_.data()[i];
    Sampled sampled{.token = token};
    if (token == kSampledNotANumber) sampled = {.error = sampling::kNotANumber};
    if (token == kSampledNothingAllowed) sampled = {.error = sampling::kNothingAllowed};
    sampled_.push_back(sampled);
  }
  return sampled_;
}

}  // namespace invar
