// Requests of every kind and what became of them, for tests that compare answers bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "../support/scripted_proposer.h"
#include "engine/engine.h"
#include "model/families/make_model.h"
#include "sampling/grammar/languages.h"

namespace invar::testing_engine {

inline constexpr int kVocab = 512;
inline constexpr int kAnswer = 40;

struct Record : OutputSink {
  struct Answer {
    std::vector<int32_t> tokens;
    std::vector<Digest> hashes;
    std::vector<std::optional<TokenLogprobs>> logprobs;
    std::vector<TokenLogprobs> prompt_logprobs;
    FinishReason finish = FinishReason::none;
    std::string error;
    bool operator==(const Answer&) const = default;
  };
  void on_token(const TokenOutput& output) override {
    Answer& answer = answers[output.request];
    EXPECT_EQ(answer.finish, FinishReason::none) << "a token after the end";
    answer.finish = output.finish;
    if (output.error) {
      answer.error = output.error;
      return;
    }
    EXPECT_EQ(output.index, std::ssize(answer.tokens));
    answer.tokens.push_back(output.token);
    answer.hashes.push_back(output.logits_hash);
    answer.logprobs.push_back(output.logprobs);
  }
  void on_prompt(const PromptOutput& output) override {
    answers[output.request].prompt_logprobs.push_back(output.logprobs);
  }
  std::map<int64_t, Answer> answers;
};

// Of the texts of 'a' and 'b': every token is one of them or both.
inline std::shared_ptr<Constraint> letters(const std::string& pattern) {
  std::vector<std::string> bytes(kVocab);
  for (int i = 0; i < kVocab; ++i) bytes[i] = std::string(i % 3 + 1, "ab"[i % 2]);
  return std::make_shared<Constraint>(grammar::regex_language(pattern),
                                      std::make_shared<const TokenTable>(bytes));
}

// Requests of every kind that the sampler knows.
inline std::vector<Request> all_kinds() {
  std::vector<Request> requests;
  const auto add = [&]() -> Request& {
    Request& r = requests.emplace_back();
    r.id = std::ssize(requests);
    for (int i = 0; i < 9 + 23 * static_cast<int>(r.id % 5); ++i)
      r.prompt.edit().push_back((5 + i * 7 + static_cast<int>(r.id)) % 500);
    r.params.max_tokens = kAnswer;
    r.params.temperature = 0.8;
    r.params.seed = 10 + static_cast<uint64_t>(r.id);
    return r;
  };
  add().params.temperature = 0;
  add().params.top_p = 0.95;
  {
    Request& r = add();
    r.params.top_k = 40;
    r.params.min_p = 0.01;
    r.params.logprobs = 3;
    r.params.logprobs_mode = LogprobsMode::processed_logprobs;
  }
  {
    Request& r = add();
    r.params.repetition_penalty = 1.3;
    r.params.presence_penalty = 0.4;
    r.params.frequency_penalty = 0.3;
  }
  {
    Request& r = add();
    r.params.temperature = 0;
    r.params.frequency_penalty = 0.7;
    r.params.prompt_logprobs = 2;
    r.params.logprobs_mode = LogprobsMode::processed_logits;
  }
  add().constraint = letters("(a|b)*");
  {
    Request& r = add();
    r.constraint = letters("(aab|bba|abab){3,9}");
    r.params.stop_token_ids = {7};
    r.params.logprobs = 0;
  }
  {
    Request& r = add();
    r.params.stop_token_ids = {3, 50, 100, 150, 200, 250, 300, 350, 400, 450};
    r.params.min_tokens = 4;
  }
  {
    Request& r = add();
    r.params.logit_bias = {{17, 4.0}, {23, 3.5}};
    r.params.bad_words = {{17, 23}, {23, 23}};
  }
  {
    Request& r = add();
    r.choice = 3;
    r.hash_logits = false;
    r.params.max_tokens = 7;
  }
  add().params.temperature = 1.3;
  return requests;
}

// As another model's, but one token's value vectors overflow.
class Overflowing final : public TensorSource {
 public:
  static constexpr int32_t kToken = 499;

  explicit Overflowing(const DecoderSpec& spec) : base_(dummy_weights(spec, 7)) {}
  const std::vector<std::string>& names() const override { return base_->names(); }
  bool has(std::string_view name) const override { return base_->has(name); }
  const TensorInfo& info(std::string_view name) const override { return base_->info(name); }
  std::string where(std::string_view name) const override { return base_->where(name); }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    base_->read(name, first, count, as, out);
    const int64_t width = info(name).row_elements();
    const bool embeds = name == "model.embed_tokens.weight";
    if (!embeds && name != "model.layers.0.self_attn.v_proj.weight") return;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (first + i) / width, column = (first + i) % width;
      if (embeds && column == 0) set(out, i, as, row == kToken ? 8.0F : 0.0F);
      if (!embeds && row == 0 && column == 0) set(out, i, as, 3e38F);
    }
  }

 private:
  static void set(void* out, int64_t index, DType as, float value) {
    if (as == DType::f32)
      static_cast<float*>(out)[index] = value;
    else
      static_cast<bf16_t*>(out)[index] = f32_to_bf16(value);
  }
  std::unique_ptr<TensorSource> base_;
};

// Prompts with their answers, for a proposer that knows what comes.
inline KnownAnswers known_of(const std::vector<Request>& requests,
                             const std::map<int64_t, Record::Answer>& answers) {
  KnownAnswers known;
  for (const Request& request : requests) {
    std::vector<int32_t>& tokens = known[request.id] = request.prompt;
    const std::vector<int32_t>& answer = answers.at(request.id).tokens;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
  }
  return known;
}

}  // namespace invar::testing_engine
