#include "frontend/likelihoods.h"

#include "base/error.h"

namespace invar {

size_t Likelihoods::add(std::span<const int32_t> prompt, std::span<const int32_t> text) {
  if (prompt.empty() || text.empty())
    fail_usage("expected a prompt and a text of at least one token, found {} and {}", prompt.size(),
               text.size());
  if (std::ssize(prompt) + std::ssize(text) > context_)
    fail_usage(
        "the prompt has {} tokens with {} of an answer: together they exceed the context of {}",
        prompt.size(), text.size(), context_);
  Tokens known(prompt.begin(), prompt.end());
  if (prompts_.emplace(known, true).second) prompt_tokens_ += std::ssize(prompt);
  std::vector<size_t>& requests = texts_.emplace_back();
  for (const int32_t token : text) {
    requests.push_back(request_of(known, token));
    known.push_back(token);
  }
  return texts_.size() - 1;
}

size_t Likelihoods::request_of(const Tokens& known, int32_t token) {
  const auto [place, is_new] = requests_.try_emplace(known);
  if (is_new) bytes_ += known.size() * sizeof(int32_t);
  const auto [request, is_first] = place->second.emplace(token, count_);
  if (!is_first) return request->second;
  if (++count_ > kMostRequests)
    fail_usage("expected texts of at most {} tokens together, found more", kMostRequests);
  bytes_ += sizeof(Request);
  return request->second;
}

std::vector<Request> Likelihoods::requests() const {
  std::vector<Request> all(count_);
  for (const auto& [known, tokens] : requests_) {
    const Shared<std::vector<int32_t>> prompt(known);
    for (const auto& [token, place] : tokens) {
      Request& request = all[place];
      request.prompt = prompt;
      request.params.temperature = 0;
      request.params.max_tokens = 1;
      request.params.logprobs = 0;
      request.params.allowed_token_ids = std::vector<int32_t>{token};
      request.cache_salt = salt_;
      request.hash_logits = false;
    }
  }
  return all;
}

float Likelihoods::log_probability(size_t text, std::span<const std::vector<float>> numbers) const {
  float sum = 0;
  for (const size_t request : texts_[text]) sum += numbers[request][0];
  return sum;
}

}  // namespace invar
