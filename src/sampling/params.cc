#include "sampling/params.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/fields.h"
#include "base/json.h"

namespace invar {

namespace {

static_assert(kFieldCount<SamplingParams> == fields::count<SamplingParams>(),
              "every field of SamplingParams has a row");

constexpr size_t kMaxBadWords = 2048;  // each is looked at for every token
constexpr double kLeastTemperature = 0.01, kGreedyBelow = 1e-5, kMaxBias = 100.0;

// Written so that a NaN is outside every range.
void check_ranges(const SamplingParams& p) {
  for_each_field(p, [](const auto& field, const auto& value) {
    const auto& [low, high] = std::tie(field.facts.low, field.facts.high);
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>)
      if (const auto number = static_cast<double>(value); !(number >= low && number <= high))
        fail_usage("{} must be in [{}, {}], not {}", field.name, low, high, value);
  });
}

void require_tokens(const char* name, const std::vector<int32_t>& tokens, int32_t vocab) {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab)
      fail_usage("{} names token {} but the model has tokens 0 to {}", name, token, vocab - 1);
}

// Sorts the tokens, each once. A list that is so already is not copied.
void make_ascending(Shared<std::vector<int32_t>>& tokens) {
  if (std::ranges::adjacent_find(tokens, std::ranges::greater_equal()) == tokens.end()) return;
  std::vector<int32_t>& list = tokens.edit();
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

void check_least(const SamplingParams& p) {
  if (p.min_tokens < 0 || p.min_tokens > p.max_tokens)
    fail_usage("min_tokens must be in [0, max_tokens = {}], not {}", p.max_tokens, p.min_tokens);
}

void check_lengths(const SamplingParams& p) {
  if (p.max_tokens < 1) fail_usage("max_tokens must be at least 1, not {}", p.max_tokens);
  check_least(p);
}

void check_logit_bias(SamplingParams& p, int32_t vocab) {
  if (!std::ranges::is_sorted(p.logit_bias)) std::ranges::sort(p.logit_bias.edit());
  for (size_t i = 0; i < p.logit_bias.size(); ++i) {
    const auto& [token, bias] = p.logit_bias[i];
    if (token < 0 || token >= vocab)
      fail_usage("logit_bias names token {} but the model has tokens 0 to {}", token, vocab - 1);
    if (i > 0 && p.logit_bias[i - 1].first == token)
      fail_usage("logit_bias names token {} twice", token);
    if (bias != bias) fail_usage("logit_bias of token {} is not a number", token);
    if (std::abs(bias) > kMaxBias)
      p.logit_bias.edit()[i].second = std::clamp(bias, -kMaxBias, kMaxBias);
  }
}

void check_bad_words(const SamplingParams& p, int32_t vocab) {
  if (p.bad_words.size() > kMaxBadWords)
    fail_usage("bad_words must be at most {} sequences of tokens, not {}", kMaxBadWords,
               p.bad_words.size());
  for (const std::vector<int32_t>& word : p.bad_words) {
    if (word.empty()) fail_usage("a bad word must be at least one token, not none");
    require_tokens("bad_words", word, vocab);
  }
}

// Some token must be able to come first.
void check_something_may_come(const SamplingParams& p, int32_t vocab) {
  std::vector<int32_t> forbidden;
  if (p.min_tokens > 0) forbidden = p.stop_token_ids;
  for (const std::vector<int32_t>& word : p.bad_words)
    if (word.size() == 1) forbidden.push_back(word[0]);
  std::sort(forbidden.begin(), forbidden.end());
  forbidden.erase(std::unique(forbidden.begin(), forbidden.end()), forbidden.end());
  const std::vector<int32_t>& allowed = p.allowed_token_ids;
  const bool nothing = allowed.empty() ? std::ssize(forbidden) == vocab
                                       : std::includes(forbidden.begin(), forbidden.end(),
                                                       allowed.begin(), allowed.end());
  if (nothing)
    fail_usage(
        "expected a token that may come first, found none: allowed_token_ids, bad_words and "
        "min_tokens leave nothing");
}

}  // namespace

namespace {

constexpr const char* kLogprobsModes[] = {"raw_logprobs", "processed_logprobs", "raw_logits",
                                          "processed_logits", "scaled_logprobs"};

}  // namespace

const char* name_of(LogprobsMode mode) {
  return kLogprobsModes[static_cast<size_t>(mode)];
}

LogprobsMode logprobs_mode_of(std::string_view name) {
  const auto found = std::ranges::find(kLogprobsModes, name,
                                       [](const char* one) { return std::string_view(one); });
  if (found == std::end(kLogprobsModes))
    fail_usage(
        "expected logprobs_mode as raw_logprobs, scaled_logprobs, processed_logprobs, raw_logits "
        "or processed_logits, found {}",
        json::quoted(name));
  return static_cast<LogprobsMode>(found - std::begin(kLogprobsModes));
}

int32_t length_that_fits(int32_t most, size_t prompt, int32_t context) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(context - static_cast<int64_t>(prompt), 1, std::max(1, most)));
}

void fit_length(SamplingParams& p, size_t prompt, int32_t context) {
  p.max_tokens = length_that_fits(p.max_tokens, prompt, context);
  check_least(p);
}

bool is_stop(const SamplingParams& params, int32_t token) {
  return std::ranges::binary_search(params.stop_token_ids, token);
}

SamplingParams checked(SamplingParams p, int32_t vocab) {
  check_lengths(p);
  if (!(p.top_p > 0.0 && p.top_p <= 1.0)) fail_usage("top_p must be in (0, 1], not {}", p.top_p);
  if (p.top_k < -1)
    fail_usage("top_k must be at least 1, or 0 or -1 to turn it off, not {}", p.top_k);
  check_ranges(p);
  check_logit_bias(p, vocab);
  require_tokens("stop_token_ids", p.stop_token_ids, vocab);
  require_tokens("allowed_token_ids", p.allowed_token_ids, vocab);
  make_ascending(p.stop_token_ids);
  make_ascending(p.allowed_token_ids);
  check_bad_words(p, vocab);
  check_something_may_come(p, vocab);
  for (const auto& [name, count] :
       {std::pair("logprobs", p.logprobs), std::pair("prompt_logprobs", p.prompt_logprobs)})
    if (count && (*count < 0 || *count > vocab))
      fail_usage("{} must be in [0, {}], not {}", name, vocab, *count);

  if (p.top_k == -1 || p.top_k >= vocab) p.top_k = 0;
  if (p.temperature < kGreedyBelow) {
    if (p.n > 1) fail_usage("n must be 1 with temperature 0, not {}: all answers are equal", p.n);
    p.temperature = 0.0;
    p.top_p = 1.0;
    p.top_k = 0;
    p.min_p = 0.0;
  } else {
    p.temperature = std::max(p.temperature, kLeastTemperature);
  }
  return p;
}

}  // namespace invar
