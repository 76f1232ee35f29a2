#include "frontend/openai_sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/request_limits.h"

namespace invar::openai {

namespace {

uint64_t seed_of(const json::Value& value) {
  if (!value.is_number()) fail_usage("expected seed as an integer, found {}", value.type_name());
  if (const auto found = value.to_unsigned()) return *found;
  if (const auto found = value.to_integer()) return static_cast<uint64_t>(*found);
  fail_usage("expected seed as an integer from {} to {}, found {}", INT64_MIN, UINT64_MAX,
             json::excerpt(value));
}

// {"token id": bias}
void read_logit_bias(const json::Value& bias, int32_t vocab, SamplingParams& p) {
  if (!bias.is_object()) fail_usage("expected logit_bias as an object, found {}", bias.type_name());
  if (std::ssize(bias.as_object()) > vocab)
    fail_usage("expected at most {} tokens in logit_bias, found {}", vocab,
               bias.as_object().size());
  auto& biases = p.logit_bias.edit();
  for (const auto& [key, value] : bias.as_object()) {
    int32_t token = 0;
    const auto end = std::from_chars(key.data(), key.data() + key.size(), token);
    if (end.ec != std::errc() || end.ptr != key.data() + key.size() || !value.is_number())
      fail_usage("expected a token id and a number in logit_bias, found {}: {}", json::quoted(key),
                 json::excerpt(value));
    biases.emplace_back(token, value.as_number());
  }
}

void read_bad_words(const json::Value& words, const Tokenizer& tokenizer, SamplingParams& p) {
  size_t bytes = 0;
  for (const json::Value& word : list_of(words, "bad_words", kMaxBadWords))
    bytes += text_of(word, "a bad word").size();
  if (bytes > kMaxBadWordsBytes)
    fail_usage("expected bad_words of at most {} bytes together, found {}", kMaxBadWordsBytes,
               bytes);
  std::vector<std::vector<int32_t>>& bad_words = p.bad_words.edit();
  for (const json::Value& word : words.as_array())
    add_bad_word(word.as_string(), tokenizer, bad_words);
}

}  // namespace

void read_repeat_penalty(const BodyFields& fields, json::Value& made, RequestWarnings& warnings) {
  double penalty = 1;
  int32_t window = 64;
  fields.read_number("repeat_penalty", penalty);
  fields.read_integer("repeat_last_n", window, -1);
  if (penalty == 1 || window == 0) return;
  made.set("repetition_penalty", penalty);
  if (window != -1)
    warnings.add(fmt::format("repeat_penalty counts all tokens, not the last {}", window));
}

void add_bad_word(std::string_view word, const Tokenizer& tokenizer,
                  std::vector<std::vector<int32_t>>& bad_words) {
  word.remove_prefix(std::min(word.find_first_not_of(" \t\r\n"), word.size()));
  const EncodeOptions plain{.add_special_tokens = false};
  const std::vector<int32_t> alone = tokenizer.encode(word, plain);
  if (alone.empty()) fail_usage("expected in bad_words at least one letter each, found none");
  bad_words.push_back(alone);
  const auto behind = tokenizer.encode(" " + std::string(word), plain);
  if (behind.size() == alone.size() && first_of(behind) != first_of(alone))
    bad_words.push_back(behind);
}

const json::Value* given_seed(const BodyFields& fields) {
  const json::Value* seed = fields.find("seed");
  return seed && *seed == json::Value(-1) ? nullptr : seed;
}

void read_sampling(const BodyFields& fields, const Context& context, SamplingParams& p) {
  fields.read_integer("n", p.n, 1);
  fields.read_integer("top_k", p.top_k, -1);
  fields.read_number("temperature", p.temperature);
  fields.read_number("top_p", p.top_p);
  fields.read_number("min_p", p.min_p);
  fields.read_number("repetition_penalty", p.repetition_penalty);
  fields.read_number("presence_penalty", p.presence_penalty);
  fields.read_number("frequency_penalty", p.frequency_penalty);
  if (const json::Value* v = given_seed(fields)) p.seed = seed_of(*v);
  if (const json::Value* v = fields.find("logit_bias")) read_logit_bias(*v, context.vocab, p);
  if (const json::Value* v = fields.find("allowed_token_ids")) {
    p.allowed_token_ids = token_ids_of(*v, "allowed_token_ids", context.vocab, context.vocab);
    if (p.allowed_token_ids.empty())
      fail_usage("expected at least one token in allowed_token_ids, found none");
  }
  if (const json::Value* v = fields.find("bad_words")) read_bad_words(*v, *context.tokenizer, p);
}

}  // namespace invar::openai
