#include "sampling/device_sampler.h"

#include <algorithm>

#include "base/check.h"

namespace invar {

namespace {

constexpr const char* kWhat = "the rows that are sampled";
constexpr size_t kLine = 64;

size_t lines(size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

bool excludes(const SampleInput& in) {
  if (!in.looks_back()) return !in.params->allowed_token_ids.empty();
  return !in.allowed.empty() || in.params->has_exclusions() || in.generated < in.params->min_tokens;
}

}  // namespace

DeviceSampler::DeviceSampler(Operation<SampleRowsParams> sample, const Execution& on, int max_rows,
                             Operation<HashLogitsParams> hash)
    : sample_(sample),
      on_(on),
      max_rows_(static_cast<size_t>(max_rows)),
      done_(on.device->make_event()),
      hasher_(hash, on, max_rows_) {
  tokens_ = {*on.device, max_rows_, kWhat};
  ids_ = {*on.device, max_rows_, kWhat};
  top_ = {*on.device, max_rows_ * kMostTop, kWhat};
  host_tokens_ = {*on.device, max_rows_, kWhat};
  host_top_ = {*on.device, max_rows_ * kMostTop, kWhat};
}

// A row that filters change cannot be shown as it was before them.
bool DeviceSampler::can(const SampleInput& in) {
  const SamplingParams& p = *in.params;
  const bool has_two_rows =
      in.logprobs && in.looks_back() && is_scaled(p.logprobs_mode) && p.has_filters();
  return in.logprobs.value_or(0) <= kMostTop && !has_two_rows;
}

void DeviceSampler::start(const float* logits, int64_t vocab, std::span<const SampleInput> rows) {
  CHECK(rows.size() <= max_rows_, "more rows than the sampler has room for");
  hashed_.clear();
  rows_.clear();
  masks_.clear();
  biases_.clear();
  counts_.clear();
  for (const SampleInput& in : rows) gather(in, vocab);
  wants_top_ = std::ranges::any_of(rows_, [](const SampledRow& row) { return row.top > 0; });

  Stream& stream = *on_.stream;
  on_.run(sample_, send(logits, vocab));
  stream.download(host_tokens_.data(), tokens_.data(), rows.size() * sizeof(SampledToken));
  if (wants_top_)
    stream.download(host_top_.data(), top_.data(), rows.size() * kMostTop * sizeof(TopToken));
  if (hashed_.empty()) return stream.record(*done_);
  hasher_.start(logits, std::ssize(rows), vocab, device_hashed_, std::ssize(hashed_));
}

// One wait for all.
void DeviceSampler::wait() {
  hashed_.empty() ? done_->wait() : hasher_.wait();
}

std::span<const DeviceSampled> DeviceSampler::finish(std::span<const SampleInput> rows) {
  wait();
  take(rows);
  return sampled_;
}

// Adds a row to the lists.
void DeviceSampler::gather(const SampleInput& in, int64_t vocab) {
  const SamplingParams& p = *in.params;
  SampledRow row{.seed = p.seed,
                 .position = static_cast<uint32_t>(in.position),
                 .choice = static_cast<uint32_t>(in.choice),
                 .given = in.given,
                 .top = in.logprobs.value_or(-1),
                 .of_processed = in.logprobs && is_processed(p.logprobs_mode),
                 .as_logits = is_logits(p.logprobs_mode)};
  if (in.wants_hash) hashed_.push_back(static_cast<int32_t>(rows_.size()));
  if (in.looks_back() || row.of_processed) {
    row.temperature = static_cast<float>(p.temperature);
    if (in.looks_back() || !is_scaled(p.logprobs_mode)) {
      row.min_p = static_cast<float>(p.min_p);
      row.top_p = p.top_p;
      row.top_k = p.top_k;
    }
    row.mask = excludes(in) ? add_mask(in, vocab) : -1;
    row.repetition_penalty = static_cast<float>(p.repetition_penalty);
    row.frequency_penalty = static_cast<float>(p.frequency_penalty);
    row.presence_penalty = static_cast<float>(p.presence_penalty);
    row.bias_begin = static_cast<int32_t>(biases_.size());
    for (const auto& [token, bias] : p.logit_bias)
      biases_.push_back({token, static_cast<float>(bias)});
    row.bias_end = static_cast<int32_t>(biases_.size());
    row.count_begin = static_cast<int32_t>(counts_.size());
    if (p.has_penalties() && in.looks_back())
      for (const auto& [token, generated] : in.history->entries())
        counts_.push_back({token, generated});
    row.count_end = static_cast<int32_t>(counts_.size());
  }
  rows_.push_back(row);
}

// Step 1 of numerics 6; returns the mask's number.
int32_t DeviceSampler::add_mask(const SampleInput& in, int64_t vocab) {
  const SamplingParams& p = *in.params;
  const size_t words = static_cast<size_t>(vocab + 63) / 64, begin = masks_.size();
  masks_.resize(begin + words, ~uint64_t{0});
  const std::span<uint64_t> mask(masks_.data() + begin, words);
  if (!in.allowed.empty() && in.looks_back()) std::copy_n(in.allowed.begin(), words, mask.begin());
  if (!p.allowed_token_ids.empty()) {
    std::vector<uint64_t> only(words);
    for (const int32_t token : p.allowed_token_ids) only[token / 64] |= uint64_t{1} << token % 64;
    for (size_t i = 0; i < words; ++i) mask[i] &= only[i];
  }
  if (!in.looks_back()) return static_cast<int32_t>(begin / words);
  const auto exclude = [&](int32_t token) { mask[token / 64] &= ~(uint64_t{1} << token % 64); };
  for (const std::vector<int32_t>& word : p.bad_words)
    if (sampling::is_begun(word, in.answer)) exclude(word.back());
  if (in.generated < p.min_tokens) std::ranges::for_each(p.stop_token_ids, exclude);
  return static_cast<int32_t>(begin / words);
}

// Puts the copy of the lists into the stream.
SampleRowsParams DeviceSampler::send(const float* logits, int64_t vocab) {
  const auto bytes_of = [](const auto& list) { return lines(list.size() * sizeof(list[0])); };
  const size_t bytes = bytes_of(rows_) + bytes_of(masks_) + bytes_of(biases_) + bytes_of(counts_) +
                       bytes_of(hashed_);
  if (bytes > lists_.size()) {
    const size_t room = std::max(bytes, 2 * lists_.size());
    host_lists_ = {*on_.device, room, kWhat};
    lists_ = {*on_.device, room, kWhat};
  }
  size_t at = 0;
  const auto put = [&]<typename T>(const std::vector<T>& list) {
    std::ranges::copy(std::as_bytes(std::span(list)), host_lists_.data() + at);
    const std::byte* there = lists_.data() + at;
    at += bytes_of(list);
    return reinterpret_cast<const T*>(there);
  };
  const SampleRowsParams params{.logits = logits,
                                .vocab = vocab,
                                .of = put(rows_),
                                .rows = std::ssize(rows_),
                                .masks = put(masks_),
                                .biases = put(biases_),
                                .counts = put(counts_),
                                .tokens = tokens_.data(),
                                .ids = ids_.data(),
                                .top = top_.data()};
  device_hashed_ = put(hashed_);
  on_.stream->upload(lists_.data(), host_lists_.data(), at);
  return params;
}

// Takes the device's results, once it has been waited for.
void DeviceSampler::take(std::span<const SampleInput> rows) {
  sampled_.assign(rows.size(), {});
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampledToken& found = host_tokens_.data()[i];
    DeviceSampled& sampled = sampled_[i];
    if (found.token < 0) {
      sampled.error =
          found.token == kSampledNotANumber ? sampling::kNotANumber : sampling::kNothingAllowed;
      continue;
    }
    sampled.token = found.token;
    if (!rows[i].logprobs) continue;
    static_cast<TokenLogprob&>(sampled.logprobs) = {found.token, found.logprob, found.rank};
    const TopToken* top = host_top_.data() + i * kMostTop;
    for (int32_t rank = 1; rank <= *rows[i].logprobs && top[rank - 1].token >= 0; ++rank)
      sampled.logprobs.top.push_back({top[rank - 1].token, top[rank - 1].logprob, rank});
  }
  for (size_t i = 0; i < hashed_.size(); ++i) sampled_[hashed_[i]].digest = hasher_.digests()[i];
}

}  // namespace invar
