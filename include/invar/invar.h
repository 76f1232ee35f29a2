// Invar as a library: open a model, generate text, score it, embed it. The bits of every result
// depend on the model, the arithmetic and the call's arguments alone, not on threads, batches or
// the machine (docs/numerics.md; docs/howto/use_the_library.md shows every call).
//
// Link with the CMake package `invar` (target invar::invar) or pkg-config's `invar`. Errors are
// std::runtime_error with one sentence: what was expected, what was found, where. After one the
// session is as before the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace invar {

// Options that have a name among vLLM's engine arguments have its meaning.
struct SessionOptions {
  std::string model;                     // a Hugging Face model directory
  std::string load_format = "auto";      // or "dummy:SEED": random weights
  std::string arithmetic = "portable";   // "portable", "hopper", "pair", or "control", the baseline
  std::string weights = "auto";          // as the flag --weights: "rounded", "fp8-row", ...
  std::string device = "cpu";            // "cpu", "cuda" or "cuda:N"
  std::string instruction_set = "auto";  // "auto", "scalar", "avx2", "avx512" or "amx"
  int threads = 0;                       // 0: one per core
  int tensor_parallel_size = 1;          // ranks in this process
  // Tokens of prompt and answer at most; 0 is the model's own, -1 as much of it as memory holds.
  // Opening fails when memory cannot hold one sequence of that length.
  int max_model_len = 0;
  double kv_cache_gib = 0;         // memory for keys and values; 0: sized by what is free
  int max_num_seqs = 128;          // requests that are computed at the same time
  int max_num_batched_tokens = 0;  // rows of a step; 0: 512 on a CPU, 4096 on GPUs
  bool enable_prefix_caching = true;
  std::string scheduling_policy = "sarathi";  // who is computed next; no bit depends on it
  // Speculative decoding, as vLLM's JSON: {"method": "ngram"}; empty: none. No bit depends on it.
  std::string speculative_config;
  // The kind of log-probabilities where a request does not name one: raw_logprobs (of the model's
  // logits), scaled_logprobs (of those by the temperature), processed_logprobs (of the row that is
  // sampled from), raw_logits or processed_logits.
  std::string logprobs_mode = "raw_logprobs";
  // Low-rank adapters (GenerateOptions::lora): how many different ones are computed at the same
  // time, and the largest rank of one; 0: none.
  int max_loras = 0, max_lora_rank = 256;
  // A PEM file with the key that signs receipts, made where there is none; empty: a new key.
  std::string receipt_key;
};

// Fields have the names, ranges and defaults of vLLM's SamplingParams, but for the seed, which is
// always fixed: two calls with equal arguments give equal answers.
struct GenerateOptions {
  int max_tokens = 0;        // 0: as many as the context leaves
  int min_tokens = 0;        // before these many no end of sequence comes
  double temperature = 1.0;  // 0 is greedy
  int top_k = 0;             // 0: off
  double top_p = 1.0, min_p = 0.0;
  double repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  std::vector<std::pair<int32_t, double>> logit_bias;  // (token, what is added)
  std::vector<int32_t> allowed_token_ids;              // no others come; empty: all may
  uint64_t seed = 0;
  std::vector<std::string> stop;        // texts that end the answer; they are no part of it
  std::vector<int32_t> stop_token_ids;  // tokens that end it
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;  // then they are
  bool skip_special_tokens = true;          // special tokens give no text
  std::vector<std::string> bad_words;       // texts that do not come
  // The form of the answer as JSON, one of {"json": schema}, {"regex": pattern}, {"choice":
  // [texts]},
  // {"grammar": GBNF}, {"json_object": true}; empty: any.
  std::string structured_outputs;
  bool logprobs = false;         // the log-probability of every token of the answer
  bool prompt_logprobs = false;  // and of the prompt
  int top_logprobs = 0;          // and beside each the so many most likely tokens
  std::string logprobs_mode;     // as SessionOptions::logprobs_mode, which an empty one stands for
  int priority = 0;              // smaller is sooner, where the scheduling policy reads it
  std::string cache_salt;        // only requests of one salt share computed blocks
  // Directory of a low-rank adapter, as PEFT saves it, to compute with; empty: none.
  std::string lora;
  // Which of several answers to one prompt this is: each samples with noise of its own.
  int choice = 0;
  bool receipt = false;  // a signed receipt of the answer (docs/receipts.md)
  // Whether logits are hashed, which takes time in proportion to the vocabulary. A receipt needs
  // it.
  bool logits_hash = true;
};

// A request of several that have options of their own.
struct Query {
  std::vector<int32_t> prompt;
  GenerateOptions options;
};

// One token of an answer as it is sampled.
struct GeneratedToken {
  int32_t id = 0;
  int32_t index = 0;             // among the answer's tokens
  std::string text;              // complete characters that can be shown now; may be empty
  std::optional<float> logprob;  // as GenerateOptions::logprobs_mode says, when it was asked for
  size_t prompt = 0;             // of several prompts the one that it answers
};
// Called once per token, on the thread that called generate; tokens of one answer come in order.
// Returning false ends the answer that the token belongs to.
using OnToken = std::function<bool(const GeneratedToken&)>;
// Called after every step that a call waits for, on its thread, with how many of its answers are
// whole and how many tokens it has. An exception that it throws ends the call and its answers.
using OnStep = std::function<void(size_t answered, size_t tokens)>;

struct Logprob {
  int32_t token = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1: the most likely
};

struct Generation {
  std::string text;
  std::vector<int32_t> prompt_tokens, tokens;
  // Where they were asked for: logprobs of `tokens`; prompt_logprobs of prompt_tokens but the
  // first. A cancelled answer has none of the prompt.
  std::vector<float> logprobs, prompt_logprobs;
  std::vector<int32_t> ranks, prompt_ranks;  // beside them: 1 for the most likely token
  std::vector<std::vector<Logprob>> top_logprobs, top_prompt_logprobs;
  std::string finish_reason;  // "stop", "length" or "cancelled" (by the callback)
  std::string stop;           // the text of GenerateOptions::stop that ended it, or empty
  // SHA-256 over the logits of every step, in hexadecimal (numerics 8), or empty.
  std::string logits_hash;
  std::string receipt;  // JSON, when it was asked for
};

// News of a request from a step: a token, or its whole answer at the end.
struct Update {
  int64_t id = 0;
  std::optional<GeneratedToken> token;
  std::optional<Generation> generation;  // no update follows
  std::string error;                     // why there is no answer: a sentence, the last update
};

// A message of a conversation.
struct Message {
  std::string role, content;
};

// A tensor in the caller's memory, by its name in the checkpoint.
struct Tensor {
  std::string name;
  std::string dtype;  // "BF16", "F16" or "F32"
  std::vector<int64_t> shape;
  const void* data = nullptr;  // in row-major order; read during the call
  int gpu = -1;                // that has it in its memory; -1: the host
};

// Values at some positions of a text, computed as a prompt is.
struct Inspection {
  std::vector<float> logits;  // [positions][vocabulary]: of the token that follows
  std::vector<float> hidden;  // [layers][positions][hidden size]: the residual stream after each
};

// A model that is open, with its tokenizer and chat template. Move-only. Every call may come from
// any thread; answers of several threads are computed together. Several sessions may live beside
// each other, each with weights and threads of its own.
class Session {
 public:
  // Loads the weights and takes the memory for keys and values.
  explicit Session(const SessionOptions& options);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // Names what fixes the bits beside weights and tokens, e.g. "invar-1/portable/bf16/row8.8".
  std::string identity() const;
  int vocabulary_size() const;
  int hidden_size() const;
  int layers() const;
  int max_model_len() const;

  // The answer to a prompt, whole; `on_token` sees it grow.
  Generation generate(std::string_view prompt, const GenerateOptions& options = {},
                      const OnToken& on_token = {});
  Generation generate(std::span<const int32_t> prompt, const GenerateOptions& options = {},
                      const OnToken& on_token = {});
  // The answers to several, in their order; they are computed together.
  std::vector<Generation> generate(std::span<const std::string> prompts,
                                   const GenerateOptions& options = {},
                                   const OnToken& on_token = {});
  std::vector<Generation> generate(std::span<const std::vector<int32_t>> prompts,
                                   const GenerateOptions& options = {},
                                   const OnToken& on_token = {});
  // The same of requests with options of their own.
  std::vector<Generation> generate(std::span<const Query> queries, const OnStep& on_step = {});
  // The answer to a conversation, by the prompt that the model's chat template makes of it.
  Generation chat(std::span<const Message> messages, const GenerateOptions& options = {},
                  const OnToken& on_token = {});

  // For those who drive the loop themselves. `add` takes a request and returns its id; `step`
  // computes one step and says what became of the requests that were added; `cancel` ends one
  // without another word. Requests of other calls are computed in the same steps.
  int64_t add(std::string_view prompt, const GenerateOptions& options = {});
  int64_t add(std::span<const int32_t> prompt, const GenerateOptions& options = {});
  std::vector<Update> step();
  void cancel(int64_t id);
  bool has_work() const;  // whether `step` has something to do or to say

  // log p(token | the tokens before it) for tokens[1], tokens[2], ...: one number less than tokens.
  // The bits are those that generate's logprobs have.
  std::vector<float> score(std::span<const int32_t> tokens);
  // The text's vector, [hidden size]: the mean of the final hidden states, or what the files of an
  // embedding model say (docs/server.md, embeddings).
  std::vector<float> embed(std::string_view text);
  // Embeds several texts, computed together.
  std::vector<std::vector<float>> embed(std::span<const std::vector<int32_t>> prompts,
                                        const OnStep& on_step = {});
  // The answer to a question whose answer is numbers, as a server gives it: `endpoint` is
  // /v1/decisions, /v1/rerank, /v1/score, /v1/embeddings or /pooling, `body` its request as JSON
  // (docs/server.md, decisions and relevance), and the result the body of the answer.
  std::string ask(std::string_view endpoint, std::string_view body, const OnStep& on_step = {});

  // Logits behind the tokens at `positions` (ascending) and the residual stream after `layers`
  // (ascending; 0 is the first) there. Computed apart from requests, with blocks of its own.
  Inspection inspect(std::span<const int32_t> tokens, std::span<const int32_t> positions,
                     std::span<const int32_t> layers = {});

  // Weights. No request may be live when they change; when they cannot be taken, the session has
  // those of before. update_weights goes on with these tensors; those that are not named stay as
  // they are. load_weights goes on with another checkpoint of the model.
  void update_weights(std::span<const Tensor> tensors);
  // The GPU whose tensors update_weights takes without a copy by way of the host, by its number
  // among those that the process sees; -1: none. Work that writes them must be given to the GPU
  // before the call.
  int gpu() const;
  void load_weights(const std::string& directory);
  // Names, types and shapes of all tensors; their data is null.
  std::vector<Tensor> tensors() const;
  // The elements of one, as it stands in the checkpoint or was given by update_weights.
  std::vector<std::byte> tensor_bytes(const std::string& name);
  // The digest that names the weights in receipts (numerics 8), in hexadecimal. Reads all weights.
  std::string weights_digest();

  void reset_prefix_cache();
  // Gives memory back until wake_up: that of keys and values, on a GPU that of the weights, too,
  // which the host keeps meanwhile (level 1); with level 2 that of the weights anywhere, which are
  // then read again. No request may be live; the others then throw.
  void sleep(int level = 1);
  // `tags`: "weights" (from then on they may be changed), "kv_cache"; empty: both. Requests are
  // taken when both are back.
  void wake_up(const std::vector<std::string>& tags = {});
  bool is_sleeping() const;

  std::vector<int32_t> tokenize(std::string_view text, bool add_special_tokens = true) const;
  std::string detokenize(std::span<const int32_t> tokens, bool skip_special_tokens = false) const;
  // The prompt that the chat template makes of a conversation.
  std::vector<int32_t> tokenize(std::span<const Message> messages) const;
  // Its text, of a conversation as JSON: {"messages": [...]} and beside them, as the server has
  // them, "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs".
  std::string render_chat(std::string_view conversation) const;
  // A token's spelling, empty where there is none; the token of a spelling; begin and end of text.
  std::string token_text(int32_t token) const;
  std::optional<int32_t> token_id(std::string_view text) const;
  std::optional<int32_t> bos_token() const;
  std::optional<int32_t> eos_token() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace invar
