// Completes a request that was read, once its prompts are tokens.
#include <algorithm>

#include "base/error.h"
#include "frontend/openai.h"

namespace invar::openai {

void settle_length(Request& request, size_t longest_prompt, int32_t context) {
  int32_t& most = request.base.params.max_tokens;
  const int64_t fits = int64_t{context} - static_cast<int64_t>(longest_prompt);
  if (request.has_length && request.clamps_length && most > fits && fits > 0) {
    request.warnings.add(fmt::format(
        "the answer has at most {} tokens instead of {}: the context ends there", fits, most));
    most = static_cast<int32_t>(fits);
  }
  if (request.has_length) return;
  fit_length(request.base.params, longest_prompt, context);
  request.has_length = true;
}

void settle_thoughts(Request& request, const std::vector<int32_t>& prompt,
                     const Tokenizer& tokenizer) {
  invar::Request& base = request.base;
  base.thoughts = thoughts_behind(request.thought_format, prompt, request.goes_on, tokenizer);
  base.thoughts.stops = request.thoughts.stops && base.thoughts.format != ThoughtFormat::none;
  std::vector<std::string_view> marks(marks_of(request.tools).begin(),
                                      marks_of(request.tools).end());
  if (base.thoughts.format != ThoughtFormat::none) {
    const ThoughtStyle& style = style_of(base.thoughts.format);
    marks.insert(marks.end(), style.marks.begin(), style.marks.end());
    json::Value form = json::Object{
        {"thought", to_json({.view = base.thoughts, .budget = request.thoughts.budget})}};
    if (request.grammar.is_object())
      for (const auto& [key, value] : request.grammar.as_object()) form.set(key, value);
    base.structured_output = json::dump(form);
  }
  base.shown_special = special_marks(marks, tokenizer);
}

invar::Request Request::answer(size_t i, Shared<std::vector<int32_t>> prompt) const {
  invar::Request one = base;
  one.prompt = std::move(prompt);
  const auto n = static_cast<size_t>(base.params.n);
  one.choice = static_cast<int32_t>(i % n);
  one.params.seed = seed_of(i / n);
  return one;
}

size_t Request::memory_bytes() const {
  constexpr size_t kAnswer = 4 << 10;
  constexpr size_t kCut = 1 << 17;  // of a prompt that is cut: more than most contexts
  const SamplingParams& p = base.params;
  const size_t longest = truncate_prompt_tokens == 0 ? SIZE_MAX : kCut;
  size_t prompt_bytes = 0;  // a token is a byte of text at least
  for (const Prompt& prompt : prompts)
    prompt_bytes += std::visit(
        [&](const auto& one) { return std::min(one.size(), longest) * sizeof(int32_t); }, prompt);
  size_t bytes = prompt_bytes * (1 + static_cast<size_t>(p.n)) + answers() * kAnswer;
  bytes += base.stop.memory_bytes() + base.prediction.size() * sizeof(int32_t);
  bytes += base.cache_salt.size() + base.structured_output.size();
  bytes += (p.stop_token_ids.size() + p.allowed_token_ids.size()) * sizeof(int32_t);
  bytes += p.logit_bias.size() * sizeof(p.logit_bias[0]);
  for (const std::vector<int32_t>& word : p.bad_words) bytes += sizeof word + 4 * word.size();
  return bytes;
}

std::vector<int32_t> tokens_of(const Request& request, const Prompt& prompt,
                               const Tokenizer& tokenizer, int32_t longest) {
  const std::string* text = std::get_if<std::string>(&prompt);
  std::vector<int32_t> tokens =
      text ? tokenizer.encode(*text, {.add_special_tokens = request.add_special_tokens})
           : std::get<std::vector<int32_t>>(prompt);
  if (request.truncate_prompt_tokens == 0) return tokens;
  // An answer that may fill the context needs one token at least.
  const int32_t most = request.base.params.max_tokens;
  const int64_t fits = std::max(0, longest - (most < longest ? most : 1));
  const int64_t kept = request.truncate_prompt_tokens > 0 ? request.truncate_prompt_tokens : fits;
  if (std::ssize(tokens) > kept) tokens.erase(tokens.begin(), tokens.end() - kept);
  return tokens;
}

}  // namespace invar::openai
