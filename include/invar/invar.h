// Invar as a library: open a model, generate text, score it, embed it. The bits of every result
// depend on the model, the arithmetic and the call's arguments alone, not on threads, batches or
// the machine (docs/numerics.md).
//
// Link with the CMake package `invar` (target invar::invar) or pkg-config's `invar`. Errors are
// std::runtime_error with one sentence: what was expected, what was found, where. After one the
// session is as before the call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace invar {

struct SessionOptions {
  std::string model;                     // a Hugging Face model directory
  std::string arithmetic = "portable";   // "portable", "hopper", or "control", the baseline
  std::string weights = "auto";          // "rounded": f32 and f16 matrices become bf16
  std::string device = "cpu";            // "cpu", "cuda" or "cuda:N"
  std::string instruction_set = "auto";  // "auto", "scalar", "avx2", "avx512" or "amx"
  int threads = 0;                       // 0: one per core
  int tensor_parallel_size = 1;          // ranks in this process
  // Tokens of prompt and answer at most; 0 is the model's own, -1 as much of it as memory holds.
  // Opening fails when memory cannot hold one sequence of that length.
  int max_model_len = 0;
  double kv_cache_gib = 0;  // memory for keys and values; 0: sized by what is free
};

// Fields have the names, ranges and defaults of vLLM's SamplingParams, but for the seed, which is
// always fixed: two calls with equal arguments give equal answers.
struct GenerateOptions {
  int max_tokens = 0;        // 0: as many as the context leaves
  double temperature = 1.0;  // 0 is greedy
  int top_k = 0;             // 0: off
  double top_p = 1.0, min_p = 0.0;
  double repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  uint64_t seed = 0;
  std::vector<std::string> stop;  // texts that end the answer; they are no part of it
  bool ignore_eos = false;
  bool logprobs = false;  // the log-probability of every token
};

// One token of an answer as it is sampled.
struct GeneratedToken {
  int32_t id = 0;
  int32_t index = 0;             // among the answer's tokens
  std::string_view text;         // complete characters that can be shown now; may be empty
  std::optional<float> logprob;  // of the model's own distribution, when it was asked for
};
// Called once per token, in order, on the thread that called generate. Returning false ends the
// answer. It must not call the session.
using OnToken = std::function<bool(const GeneratedToken&)>;

struct Generation {
  std::string text;
  std::vector<int32_t> prompt_tokens, tokens;
  std::vector<float> logprobs;  // of `tokens`, when they were asked for
  std::string finish_reason;    // "stop", "length" or "cancelled" (by the callback)
  std::string logits_hash;  // SHA-256 over the logits of every step, in hexadecimal (numerics 8)
};

// A message of a conversation.
struct Message {
  std::string role, content;
};

// A model that is open, with its tokenizer and chat template. Move-only. Not for several threads at
// once; several sessions may live beside each other, each with weights and threads of its own.
class Session {
 public:
  // Loads the weights and takes the memory for keys and values.
  explicit Session(const SessionOptions& options);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // What fixes the bits beside weights and tokens, e.g. "invar-1/portable/bf16/row8.8".
  std::string identity() const;
  int vocabulary_size() const;
  int max_model_len() const;

  // The answer to a prompt, whole; `on_token` sees it grow.
  Generation generate(std::string_view prompt, const GenerateOptions& options = {},
                      const OnToken& on_token = {});
  Generation generate(std::span<const int32_t> prompt, const GenerateOptions& options = {},
                      const OnToken& on_token = {});

  // log p(token | the tokens before it) for tokens[1], tokens[2], ...: one number less than tokens.
  // The bits are those that generate's logprobs have.
  std::vector<float> score(std::span<const int32_t> tokens);

  // The mean of the final hidden states, [hidden size] (docs/server.md, embeddings).
  std::vector<float> embed(std::string_view text);

  std::vector<int32_t> tokenize(std::string_view text) const;
  std::string detokenize(std::span<const int32_t> tokens) const;
  // The answer to a conversation, by the prompt that the model's chat template makes of it.
  Generation chat(std::span<const Message> messages, const GenerateOptions& options = {},
                  const OnToken& on_token = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace invar
