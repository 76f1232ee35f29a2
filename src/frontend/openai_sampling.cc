#include "frontend/openai_sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/ends.h"
#include "base/error.h"
#include "frontend/request_limits.h"

namespace invar::openai {

namespace {

// Beside those of SamplingParams.
constexpr std::string_view kOtherFields[] = {"stop", "include_stop_str_in_output",
                                             "skip_special_tokens", "structured_outputs",
                                             "response_format"};

// Reads a value into a field of its type.
struct FieldReader {
  const BodyFields& fields;
  const Context& context;

  template <typename Listed>
  void operator()(const Listed& field, int32_t& number) const {
    constexpr double kLeast = INT32_MIN;
    fields.read_integer(field.name, number,
                        static_cast<int64_t>(std::max(kLeast, field.facts.low)));
  }
  template <typename Listed>
  void operator()(const Listed& field, double& number) const {
    fields.read_number(field.name, number);
  }
  template <typename Listed>
  void operator()(const Listed& field, bool& flag) const {
    flag = fields.read_flag(field.name, flag);
  }
  // Any others, where they are given.
  template <typename Listed, typename T>
  void operator()(const Listed& field, T& to) const {
    if (const json::Value* value = fields.find(field.name)) read(field.name, *value, to);
  }

 private:
  // -1 names none, so that one is drawn.
  void read(const char* name, const json::Value& value, uint64_t& seed) const {
    if (value == json::Value(-1)) return;
    if (!value.is_number())
      fail_usage("expected {} as an integer, found {}", name, value.type_name());
    const auto whole = value.to_unsigned();
    if (!whole && !value.to_integer())
      fail_usage("expected {} as an integer from {} to {}, found {}", name, INT64_MIN, UINT64_MAX,
                 json::excerpt(value));
    seed = whole ? *whole : static_cast<uint64_t>(*value.to_integer());
  }

  void read(const char* name, const json::Value& value,
            Shared<std::vector<int32_t>>& tokens) const {
    tokens = token_ids_of(value, name, context.vocab, context.vocab);
    if (tokens.empty()) fail_usage("expected at least one token in {}, found none", name);
  }

  // {"token id": bias}
  void read(const char* name, const json::Value& value,
            Shared<std::vector<std::pair<int32_t, double>>>& to) const {
    if (!value.is_object())
      fail_usage("expected {} as an object, found {}", name, value.type_name());
    if (std::ssize(value.as_object()) > context.vocab)
      fail_usage("expected at most {} tokens in {}, found {}", context.vocab, name,
                 value.as_object().size());
    auto& biases = to.edit();
    for (const auto& [key, bias] : value.as_object()) {
      int32_t token = 0;
      const auto end = std::from_chars(key.data(), key.data() + key.size(), token);
      if (end.ec != std::errc() || end.ptr != key.data() + key.size() || !bias.is_number())
        fail_usage("expected a token id and a number in {}, found {}: {}", name, json::quoted(key),
                   json::excerpt(bias));
      biases.emplace_back(token, bias.as_number());
    }
  }

  void read(const char* name, const json::Value& words,
            Shared<std::vector<std::vector<int32_t>>>& to) const {
    size_t bytes = 0;
    for (const json::Value& word : list_of(words, name, kMaxBadWords))
      bytes += text_of(word, "a bad word").size();
    if (bytes > kMaxBadWordsBytes)
      fail_usage("expected {} of at most {} bytes together, found {}", name, kMaxBadWordsBytes,
                 bytes);
    for (const json::Value& word : words.as_array())
      add_bad_word(word.as_string(), *context.tokenizer, to.edit());
  }

  void read(const char* name, const json::Value& value, Shared<std::string>& text) const {
    text = text_of(value, name, kMaxSaltBytes);
  }
};

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

bool is_sampling_field(std::string_view name) {
  return among(name, kOtherFields) || has_field<SamplingParams>(name);
}

bool is_answer_field(std::string_view name) {
  return is_sampling_field(name) || has_field<invar::Request, &FieldFacts::in_body>(name);
}

void read_fields(const BodyFields& fields, const Context& context, invar::Request& answer) {
  const FieldReader reader{fields, context};
  for_each_field<&FieldFacts::in_body>(answer.params, reader);
  for_each_field<&FieldFacts::in_body>(answer, reader);
}

}  // namespace invar::openai
