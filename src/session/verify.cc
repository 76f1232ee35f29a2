#include "session/verify.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/timer.h"
#include "engine/executor.h"
#include "engine/request_state.h"
#include "engine/sampling_stage.h"
#include "engine/specification.h"
#include "frontend/answer_builder.h"
#include "frontend/constraint_compiler.h"
#include "session/open.h"
#include "weights/hf_directory.h"

namespace invar {

namespace {

constexpr int32_t kRows = 512;  // of a step

std::string digest_of_text(std::string_view text) {
  return to_hex(sha256(std::as_bytes(std::span(text))));
}

// Goes along the answer as the engine would if it were a draft: the sampling stage walks along it
// as far as the model samples it.
class Replay {
 public:
  Replay(const Receipt& receipt, Model& model, const Tokenizer& tokenizer,
         const VerifyOptions& options, int64_t count)
      : receipt_(receipt),
        options_(options),
        model_(model),
        tokenizer_(tokenizer),
        tokens_(tokens_of(receipt, count)),
        state_(request_of(receipt, tokenizer, options), static_cast<int32_t>(model.spec().vocab)),
        builder_(tokenizer, state_.request),
        stage_(model.host_kernels(), model.pool(), static_cast<int32_t>(model.spec().vocab),
               nullptr, 0),
        hashers_(static_cast<size_t>(model.pool().size())) {
    builder_.answer.prompt_tokens = receipt.prompt;
  }

  // Nothing, or what differs first.
  std::optional<std::string> run() {
    const auto rows = static_cast<int32_t>(tokens_.size()) - 1;  // the last token is only predicted
    Executor executor(model_, limits_for(rows));
    for (int32_t begin = 0; begin < rows && !found_; begin += kRows) {
      const int32_t end = std::min(begin + kRows, rows);
      const Batch batch = batch_of(begin, end);
      ForwardIo io;
      io.take_logits = [&](int64_t first, std::span<const float> logits) {
        hash(first, logits);
        stage_.take_logits(first, logits, io.non_finite);
      };
      executor.run(batch, io);
      if (std::ranges::find(io.non_finite, true) != io.non_finite.end())
        fail("a key, a value or a logit was not finite");
      take_scores();
      take_walk();
    }
    return found_;
  }

  const std::vector<Digest>& checkpoints() const { return checkpoints_; }
  TextAnswer answer() && { return std::move(builder_.answer); }

 private:
  static constexpr int32_t kBlock = 64;

  static std::vector<int32_t> tokens_of(const Receipt& receipt, int64_t count) {
    std::vector<int32_t> tokens = receipt.prompt;
    tokens.insert(tokens.end(), receipt.tokens.begin(), receipt.tokens.begin() + count);
    return tokens;
  }

  static Request request_of(const Receipt& receipt, const Tokenizer& tokenizer,
                            const VerifyOptions& options) {
    Request request{.prompt = receipt.prompt,
                    .params = receipt.params,
                    .choice = receipt.choice,
                    .stop = receipt.stop,
                    .include_stop = receipt.include_stop,
                    .skip_special = receipt.skip_special,
                    .hash_logits = false};  // hashed here, by all threads
    request.params.logprobs = options.logprobs;
    request.params.prompt_logprobs = options.prompt_logprobs;
    request.params.logprobs_mode = options.logprobs_mode;
    if (receipt.grammar.empty()) return request;
    request.structured_output = receipt.grammar;
    ConstraintCompiler(tokenizer).hold(request);
    take_thoughts(receipt.grammar, tokenizer, request);
    return request;
  }

  static RunnerLimits limits_for(int32_t rows) {
    return {.blocks = rows / kBlock + 1, .block_size = kBlock, .max_rows = std::min(rows, kRows)};
  }

  // Rows of positions [begin, end), and what is wanted of their logits: where the answer has begun
  // a walk along those of its tokens that follow here.
  Batch batch_of(int32_t begin, int32_t end) {
    const auto answer = static_cast<int32_t>(receipt_.prompt.size()) - 1;
    Batch batch{.sequences = {BatchSequence{.cell = 0}}};
    if (const auto& adapter = options_.adapter) {
      batch.sequences[0].adapter = 0;
      if (begin == 0)
        batch.adapters = {{0, adapter->rank, adapter->directory, to_hex(adapter->digest)}};
    }
    for (int32_t i = 0; i * kBlock < static_cast<int32_t>(tokens_.size()); ++i)
      batch.sequences[0].blocks.push_back(i);
    stage_.begin();
    digests_.clear();
    scored_ = 0;
    for (int32_t i = begin; i < end; ++i) {
      const bool scores = i < answer && options_.prompt_logprobs.has_value();
      if (scores || i >= answer) batch.logit_rows.push_back(i - begin);
      if (scores) stage_.add_score(state_, i + 1), ++scored_;
      batch.rows.push_back({tokens_[static_cast<size_t>(i)], i, 0});
    }
    const int32_t root = std::max(begin, answer);
    if (root >= end) return batch;
    tree_.clear();
    for (int32_t i = root + 1; i < end; ++i)
      tree_.push_back({tokens_[static_cast<size_t>(i)], i - root - 2});
    stage_.add_walk(state_, root + 1, 0, root - begin, &tree_);
    return batch;
  }

  // Hashes the rows that the answer's tokens are sampled from.
  void hash(int64_t first, std::span<const float> logits) {
    const auto vocab = static_cast<size_t>(model_.spec().vocab);
    const auto skipped = static_cast<size_t>(std::max<int64_t>(0, scored_ - first));
    const size_t all = logits.size() / vocab, had = digests_.size();
    if (all <= skipped) return;
    digests_.resize(had + all - skipped);
    model_.pool().run([&](Part part) {
      for (size_t i = skipped + part.index; i < all; i += part.count)
        digests_[had + i - skipped] = hashers_[part.index](logits.subspan(i * vocab, vocab));
    });
  }

  void take_scores() {
    for (SamplingStage::Score& score : stage_.scores())
      builder_.answer.prompt_logprobs.push_back(std::move(score.logprobs));
  }

  void take_walk() {
    for (SamplingStage::Walk& walk : stage_.walks())
      for (size_t i = 0; i < walk.outputs.size() && !found_; ++i)
        found_ = difference_at(walk.outputs[i], digests_[i]);
  }

  // The difference between the answer's next token and the one that was sampled.
  std::optional<std::string> difference_at(TokenOutput& output, const Digest& digest) {
    const size_t at = builder_.answer.tokens.size();
    const int32_t said = receipt_.tokens[at];
    if (output.error)
      return fmt::format("token {} differs: the receipt says {}, the model says: {}", at + 1,
                         shown(said), output.error);
    if (output.token != said)
      return fmt::format("token {} differs: the receipt says {}, the model says {}", at + 1,
                         shown(said), shown(output.token));
    hash_.add(digest);
    output.logits_hash = hash_.value();
    builder_.push(output);
    const bool is_last = at + 1 == receipt_.tokens.size();
    if ((at + 1) % kReceiptLink == 0 || is_last) checkpoints_.push_back(output.logits_hash);
    const std::string finish = name_of(builder_.answer.finish);
    const std::string expected = is_last ? receipt_.finish : name_of(FinishReason::none);
    if (finish != expected)
      return fmt::format("the end differs: behind token {} the receipt says {}, the model says {}",
                         at + 1, json::quoted(expected), json::quoted(finish));
    return std::nullopt;
  }

  std::string shown(int32_t token) const {
    const bool is_token = token >= 0 && token < model_.spec().vocab;
    return fmt::format(
        "{} {}", token,
        is_token ? json::quoted(tokenizer_.decode({&token, 1}, {.skip_special = false})) : "");
  }

  const Receipt& receipt_;
  const VerifyOptions& options_;
  Model& model_;
  const Tokenizer& tokenizer_;
  const std::vector<int32_t> tokens_;  // the prompt, and the answer as far as it is looked at
  RequestState state_;
  AnswerBuilder builder_;
  SamplingStage stage_;
  LogitsHash hash_;
  std::vector<PositionHasher> hashers_;  // one for each thread
  std::vector<Digest> checkpoints_;
  std::optional<std::string> found_;

  // This step: the answer's tokens behind the walk's root, how many logits are of the prompt, and
  // hashes of the others.
  DraftTree tree_;
  int64_t scored_ = 0;
  std::vector<Digest> digests_;
};

// The difference between the logits' hashes and the chain, whose first links are `checkpoints`.
std::optional<std::string> chain_difference(const Receipt& receipt,
                                            std::span<const Digest> checkpoints, bool is_whole) {
  const auto& hashes = receipt.logits_hashes;
  for (const auto* list : {&hashes, &receipt.chain})
    if (list->size() < checkpoints.size() || (is_whole && list->size() > checkpoints.size()))
      return fmt::format("the chain differs: expected {} logits hashes and links, found {} and {}",
                         checkpoints.size(), hashes.size(), receipt.chain.size());
  const std::vector<std::string> chain = chain_of(receipt, checkpoints);
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const size_t last = std::min((i + 1) * kReceiptLink, receipt.tokens.size());
    if (to_hex(checkpoints[i]) != hashes[i])
      return fmt::format(
          "the logits hash behind token {} differs: the receipt says {}, the model "
          "says {}",
          last, json::quoted(hashes[i]), to_hex(checkpoints[i]));
    if (chain[i] != receipt.chain[i])
      return fmt::format(
          "link {} of the chain differs: tokens {} to {}, or what stands before them", i + 1,
          i * kReceiptLink + 1, last);
  }
  return std::nullopt;
}

// Refuses requests that no server would have answered, or this model cannot compute.
void check_request(const Receipt& receipt, const Model& model) {
  const int64_t vocab = model.spec().vocab,
                size = std::ssize(receipt.prompt) + std::ssize(receipt.tokens);
  if (receipt.prompt.empty() || receipt.tokens.empty())
    fail("a receipt: expected a prompt and an answer of at least one token each");
  if (size > model.spec().max_positions)
    fail("a receipt: its prompt and answer have {} tokens, more than the model's {} positions",
         size, model.spec().max_positions);
  for (const auto* tokens : {&receipt.prompt, &receipt.tokens})
    for (const int32_t token : *tokens)
      if (token < 0 || token >= vocab)
        fail("a receipt: expected tokens from 0 to {}, found {}", vocab - 1, token);
  if (checked(receipt.params, static_cast<int32_t>(vocab)) != receipt.params)
    fail("a receipt: its sampling parameters are not in their one form");
  if (receipt.choice < 0 || receipt.choice >= receipt.params.n)
    fail("a receipt: expected a choice from 0 to {}, found {}", receipt.params.n - 1,
         receipt.choice);
}

}  // namespace

ReceiptModel receipt_texts(const ModelOptions& options, const std::string& template_file) {
  ReceiptModel model;
  std::string files;
  const auto texts = model_texts(options.model);
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                           "special_tokens_map.json", "added_tokens.json", "tekken.json"})
    if (const auto text = texts.find(name); text != texts.end())
      files += fmt::format("{} {}\n", name, digest_of_text(text->second));
  model.tokenizer = digest_of_text(files);
  try {
    model.chat_template = digest_of_text(open_chat_template(options, template_file).source());
  } catch (const Error&) {
    if (!template_file.empty()) throw;
  }
  return model;
}

ReceiptModel receipt_model(Model& model, const std::string& template_file) {
  ReceiptModel known = receipt_texts(model.options(), template_file);
  known.arithmetic = model.identity();
  known.specification = to_hex(specification_digest(model.config()));
  known.weights = to_hex(weights_digest(model.options(), model.pool()));
  known.defaults = defaults_digest(open_sampling_defaults(model.options()));
  return known;
}

std::optional<std::string> model_difference(const ReceiptModel& said, const ReceiptModel& known) {
  const auto of = [](const char* what, const std::string& a, const std::string& b) {
    return fmt::format("{}: the receipt says {}, the model has {}", what, json::quoted(a),
                       json::quoted(b));
  };
  if (said.arithmetic != known.arithmetic)
    return of("the arithmetic differs", said.arithmetic, known.arithmetic);
  if (said.specification != known.specification)
    return of("the specification (config.json) differs", said.specification, known.specification);
  if (said.weights != known.weights) return of("the weights differ", said.weights, known.weights);
  if (said.tokenizer != known.tokenizer)
    return of("the tokenizer differs", said.tokenizer, known.tokenizer);
  if (said.chat_template != known.chat_template)
    return of("the chat template differs", said.chat_template, known.chat_template);
  if (said.adapter != known.adapter) return of("the adapter differs", said.adapter, known.adapter);
  // A server takes the model's defaults or, with --generation-config vllm, vLLM's.
  if (said.defaults != known.defaults && said.defaults != defaults_digest({}))
    return of("the sampling defaults differ", said.defaults, known.defaults);
  return std::nullopt;
}

Verdict verify(const Receipt& receipt, const ReceiptModel& known, Model& model,
               const Tokenizer& tokenizer, const VerifyOptions& options) {
  Verdict verdict;
  ReceiptModel answering = known;
  if (options.adapter) answering.adapter = to_hex(options.adapter->digest);
  if (const auto found = model_difference(receipt.model, answering)) {
    verdict.sentence = *found;
    return verdict;
  }
  check_request(receipt, model);
  const int64_t all = std::ssize(receipt.tokens);
  verdict.tokens = options.prefix > 0 ? std::min(options.prefix, all) : all;
  const Timer timer;
  Replay replay(receipt, model, tokenizer, options, verdict.tokens);
  std::optional<std::string> found = replay.run();
  verdict.seconds = timer.seconds();
  const bool is_whole = verdict.tokens == all;
  if (!found) found = chain_difference(receipt, replay.checkpoints(), is_whole);
  verdict.answer = std::move(replay).answer();
  verdict.is_confirmed = !found;
  verdict.sentence = found.value_or(
      is_whole ? fmt::format("confirmed: {} tokens and their logits", all)
               : fmt::format("confirmed: the first {} of {} tokens", verdict.tokens, all));
  return verdict;
}

}  // namespace invar
