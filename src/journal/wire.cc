#include "wire.h"

#include <bit>

namespace invar::server {

namespace {

// Version 1 had neither allowed tokens nor bad words, version 2 no mode of log-probabilities; a
// journal may still hold their lines.
constexpr uint32_t kParamsVersion = 3;

void put_count(ByteWriter& out, const std::optional<int32_t>& count) {
  out.put(static_cast<uint8_t>(count.has_value()));
  out.put(count.value_or(0));
}

bool get_flag(ByteReader& in, const char* name) {
  const uint8_t flag = in.get<uint8_t>();
  if (flag > 1) fail("sampling parameters: expected {} as 0 or 1, found {}", name, flag);
  return flag == 1;
}

std::optional<int32_t> get_count(ByteReader& in, const char* name) {
  const bool given = get_flag(in, name);
  const int32_t count = in.get<int32_t>();
  return given ? std::optional(count) : std::nullopt;
}

}  // namespace

void put_double(ByteWriter& out, double value) {
  out.put(std::bit_cast<uint64_t>(value));
}
double get_double(ByteReader& in) {
  return std::bit_cast<double>(in.get<uint64_t>());
}

void put_params(ByteWriter& out, const SamplingParams& p) {
  out.put(kParamsVersion);
  for (const int32_t field : {p.n, p.top_k, p.max_tokens, p.min_tokens}) out.put(field);
  for (const double field : {p.temperature, p.top_p, p.min_p, p.repetition_penalty,
                             p.presence_penalty, p.frequency_penalty})
    put_double(out, field);
  out.put(static_cast<uint64_t>(p.logit_bias.size()));
  for (const auto& [token, bias] : p.logit_bias) {
    out.put(token);
    put_double(out, bias);
  }
  out.put_vector(p.stop_token_ids.get());
  out.put(static_cast<uint8_t>(p.ignore_eos));
  out.put(p.seed);
  put_count(out, p.logprobs);
  put_count(out, p.prompt_logprobs);
  out.put_vector(p.allowed_token_ids.get());
  out.put(static_cast<uint64_t>(p.bad_words.size()));
  for (const std::vector<int32_t>& word : p.bad_words) out.put_vector(word);
  out.put(static_cast<uint8_t>(p.logprobs_mode));
}

SamplingParams get_params(ByteReader& in) {
  const uint32_t version = in.get<uint32_t>();
  if (version < 1 || version > kParamsVersion)
    fail("sampling parameters: expected version 1 to {}, found {}", kParamsVersion, version);
  SamplingParams p;
  for (int32_t* field : {&p.n, &p.top_k, &p.max_tokens, &p.min_tokens}) *field = in.get<int32_t>();
  for (double* field : {&p.temperature, &p.top_p, &p.min_p, &p.repetition_penalty,
                        &p.presence_penalty, &p.frequency_penalty})
    *field = get_double(in);
  std::vector<std::pair<int32_t, double>> biases(in.get_count(sizeof(int32_t) + sizeof(double)));
  for (auto& [token, bias] : biases) {
    token = in.get<int32_t>();
    bias = get_double(in);
  }
  p.logit_bias = std::move(biases);
  p.stop_token_ids = in.get_vector<int32_t>();
  p.ignore_eos = get_flag(in, "ignore_eos");
  p.seed = in.get<uint64_t>();
  p.logprobs = get_count(in, "logprobs");
  p.prompt_logprobs = get_count(in, "prompt_logprobs");
  if (version == 1) return p;
  p.allowed_token_ids = in.get_vector<int32_t>();
  std::vector<std::vector<int32_t>> bad_words(in.get_count(sizeof(uint64_t)));
  for (std::vector<int32_t>& word : bad_words) word = in.get_vector<int32_t>();
  p.bad_words = std::move(bad_words);
  if (version == 2) return p;
  const auto mode = in.get<uint8_t>();
  constexpr auto kLast = static_cast<uint8_t>(kLastLogprobsMode);
  if (mode > kLast)
    fail("sampling parameters: expected a logprobs_mode of 0 to {}, found {}", kLast, mode);
  p.logprobs_mode = static_cast<LogprobsMode>(mode);
  return p;
}

}  // namespace invar::server
