// How likely a model says given texts behind prompts. Each token is a request of the backend for
// one token that can only be this one; its log-probability is of the model's logits. Texts that
// begin alike share requests, and prompts share blocks of the prefix cache.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "frontend/body_fields.h"

namespace invar {

class Likelihoods {
 public:
  // Requests of more tokens together are refused.
  static constexpr size_t kMostRequests = 4096;

  // `salt`: of the prefix cache. `context`: the most tokens of a prompt and a text.
  Likelihoods(std::string salt, int32_t context) : salt_(std::move(salt)), context_(context) {}

  // Returns the text's number. Throws UsageError where there are too many or they are too long.
  size_t add(std::span<const int32_t> prompt, std::span<const int32_t> text);
  std::vector<Request> requests() const;
  // About the bytes that the requests' prompts hold.
  size_t bytes() const { return bytes_; }
  size_t texts() const { return texts_.size(); }
  // Tokens of the prompts that differ, once each: what usage counts.
  int64_t prompt_tokens() const { return prompt_tokens_; }

  // For text number `text` the sum of its tokens' log-probabilities, in f32, from +0 ascending.
  // `numbers`: of each request its log-probability.
  float log_probability(size_t text, std::span<const std::vector<float>> numbers) const;

 private:
  using Tokens = std::vector<int32_t>;
  size_t request_of(const Tokens& known, int32_t token);

  std::string salt_;
  int32_t context_;
  // The requests for the tokens that may come, by what stands before them.
  std::map<Tokens, std::map<int32_t, size_t>> requests_;
  std::vector<std::vector<size_t>> texts_;  // the requests of each
  std::map<Tokens, bool> prompts_;
  size_t count_ = 0, bytes_ = 0;
  int64_t prompt_tokens_ = 0;
};

// Calls f(). A refusal of a chat that was made of `field`, or that names no field, becomes one of
// `field`.
template <typename F>
auto said_of(const std::string& field, F f) {
  try {
    return f();
  } catch (const UsageError& error) {
    throw FieldError(field, error.what());
  }
}

}  // namespace invar
