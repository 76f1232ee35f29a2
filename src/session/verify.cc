#include "session/verify.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/input_file.h"
#include "base/timer.h"
#include "engine/executor.h"
#include "engine/request_state.h"
#include "engine/specification.h"
#include "frontend/answer_builder.h"
#include "frontend/constraint_compiler.h"
#include "session/open.h"

namespace invar {

namespace {

constexpr int32_t kRows = 512;  // of a step

std::string digest_of_text(std::string_view text) {
  return to_hex(sha256(std::as_bytes(std::span(text))));
}

// The first member of the two that differs.
std::optional<std::string> difference(const ReceiptModel& said, const ReceiptModel& known) {
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
  // A server takes the model's defaults or, with --generation-config vllm, vLLM's.
  if (said.defaults != known.defaults && said.defaults != defaults_digest({}))
    return of("the sampling defaults differ", said.defaults, known.defaults);
  return std::nullopt;
}

// Goes along the answer, position by position, as the engine would.
class Replay {
 public:
  Replay(const Receipt& receipt, Model& model, const Tokenizer& tokenizer,
         const VerifyOptions& options, int64_t count)
      : receipt_(receipt),
        options_(options),
        model_(model),
        tokenizer_(tokenizer),
        count_(count),
        state_(request_of(receipt, tokenizer), static_cast<int32_t>(model.spec().vocab),
               static_cast<int32_t>(model.spec().hidden)),
        builder_(tokenizer, state_.request),
        logprobs_(model.host_kernels()),
        hashers_(static_cast<size_t>(model.pool().size())) {
    builder_.answer.prompt_tokens = receipt.prompt;
  }

  // Nothing, or what differs first.
  std::optional<std::string> run() {
    std::vector<int32_t> tokens = receipt_.prompt;
    tokens.insert(tokens.end(), receipt_.tokens.begin(), receipt_.tokens.begin() + count_);
    const auto rows = static_cast<int32_t>(tokens.size()) - 1;  // the last token is only predicted
    Executor executor(model_, limits_for(rows));
    BatchSequence own;
    for (int32_t i = 0; i * kBlock < rows; ++i) own.blocks.push_back(i);
    const auto answer = static_cast<int32_t>(receipt_.prompt.size()) - 1;
    const int32_t first = options_.prompt_logprobs ? 0 : answer;
    for (int32_t begin = 0; begin < rows && !found_; begin += kRows) {
      Batch batch{.sequences = {own}};
      for (int32_t i = begin; i < std::min(begin + kRows, rows); ++i) {
        if (i >= first) batch.logit_rows.push_back(i - begin);
        batch.rows.push_back({tokens[static_cast<size_t>(i)], i, 0});
      }
      ForwardIo io;
      const int32_t scored = std::clamp<int32_t>(answer - begin, 0, std::ssize(batch.logit_rows));
      io.take_logits = [&](int64_t at, std::span<const float> logits) {
        take(at, options_.prompt_logprobs ? scored : 0, logits);
      };
      executor.run(batch, io);
      if (std::ranges::find(io.non_finite, true) != io.non_finite.end())
        fail("a key, a value or a logit was not finite");
    }
    return found_;
  }

  const std::vector<Digest>& marks() const { return marks_; }
  TextAnswer answer() && { return std::move(builder_.answer); }

 private:
  static constexpr int32_t kBlock = 64;

  static Request request_of(const Receipt& receipt, const Tokenizer& tokenizer) {
    Request request{.prompt = receipt.prompt,
                    .params = receipt.params,
                    .choice = receipt.choice,
                    .stop = receipt.stop,
                    .include_stop = receipt.include_stop,
                    .skip_special = receipt.skip_special};
    if (receipt.form.empty()) return request;
    request.structured_output = receipt.form;
    ConstraintCompiler(tokenizer).hold(request);
    take_thoughts(receipt.form, tokenizer, request);
    return request;
  }

  static RunnerLimits limits_for(int32_t rows) {
    return {.blocks = rows / kBlock + 1, .block_size = kBlock, .max_rows = std::min(rows, kRows)};
  }

  // Logits of the next positions, from row `at` of the step's on; of the rows before `scored` the
  // log-probability of the prompt's next token is wanted and nothing else.
  void take(int64_t at, int64_t scored, std::span<const float> logits) {
    const auto vocab = static_cast<size_t>(model_.spec().vocab);
    for (; at < scored && !logits.empty(); ++at, logits = logits.subspan(vocab))
      score(logits.first(vocab));
    const size_t count = logits.size() / vocab;
    digests_.resize(count);
    model_.pool().run([&](Part part) {
      for (size_t i = part.index; i < count; i += part.count)
        digests_[i] = hashers_[part.index](logits.subspan(i * vocab, vocab));
    });
    const ScopedFlushToZero flush;
    for (size_t i = 0; i < count && !found_; ++i)
      found_ = step(logits.subspan(i * vocab, vocab), digests_[i]);
  }

  void score(std::span<const float> logits) {
    const ScopedFlushToZero flush;
    auto& scores = builder_.answer.prompt_logprobs;
    const int32_t token = receipt_.prompt[scores.size() + 1];
    if (!logprobs_.read(logits, token, *options_.prompt_logprobs, scores.emplace_back()))
      fail("a logit was not finite");
  }

  // One token. Compared before the state takes it: a constraint knows none that it does not allow.
  std::optional<std::string> step(std::span<const float> logits, const Digest& digest) {
    const auto at = static_cast<size_t>(state_.answer_size());
    const int32_t said = receipt_.tokens[at];
    SampleInput input = state_.sample_input();
    input.logits = logits;
    input.allowed = state_.constraint.allowed(receipt_.params);
    const char* error = state_.constraint.error();
    const Sampled sampled = error ? Sampled{.error = error} : sampler_.sample(input);
    if (sampled.error)
      return fmt::format("token {} differs: the receipt says {}, the model says: {}", at + 1,
                         shown(said), sampled.error);
    if (sampled.token != said)
      return fmt::format("token {} differs: the receipt says {}, the model says {}", at + 1,
                         shown(said), shown(sampled.token));
    TokenOutput output = state_.take(said, digest);
    if (options_.logprobs &&
        !logprobs_.read(logits, said, *options_.logprobs, output.logprobs.emplace()))
      fail("a logit was not finite");
    builder_.push(output);
    const bool is_last = at + 1 == receipt_.tokens.size();
    if ((at + 1) % kReceiptLink == 0 || is_last) marks_.push_back(output.logits_hash);
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
  const int64_t count_;
  RequestState state_;
  AnswerBuilder builder_;
  Sampler sampler_;
  LogprobReader logprobs_;
  std::vector<PositionHasher> hashers_;  // one for each thread
  std::vector<Digest> digests_;
  std::vector<Digest> marks_;
  std::optional<std::string> found_;
};

// Of the logits hashes and the chain, whose first links are `marks`.
std::optional<std::string> chain_difference(const Receipt& receipt, std::span<const Digest> marks,
                                            bool is_whole) {
  const auto& hashes = receipt.logits_hashes;
  for (const auto* list : {&hashes, &receipt.chain})
    if (list->size() < marks.size() || (is_whole && list->size() > marks.size()))
      return fmt::format("the chain differs: expected {} logits hashes and links, found {} and {}",
                         marks.size(), hashes.size(), receipt.chain.size());
  const std::vector<std::string> chain = chain_of(receipt, marks);
  for (size_t i = 0; i < marks.size(); ++i) {
    const size_t last = std::min((i + 1) * kReceiptLink, receipt.tokens.size());
    if (to_hex(marks[i]) != hashes[i])
      return fmt::format(
          "the logits hash behind token {} differs: the receipt says {}, the model "
          "says {}",
          last, json::quoted(hashes[i]), to_hex(marks[i]));
    if (chain[i] != receipt.chain[i])
      return fmt::format(
          "link {} of the chain differs: tokens {} to {}, or what stands before them", i + 1,
          i * kReceiptLink + 1, last);
  }
  return std::nullopt;
}

// What no server would have answered, or this model cannot compute.
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
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                           "special_tokens_map.json", "added_tokens.json", "tekken.json"}) {
    const std::string path = options.model + "/" + name;
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored))
      files += fmt::format("{} {}\n", name, digest_of_text(read_whole_file(path)));
  }
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

Verdict verify(const Receipt& receipt, const ReceiptModel& known, Model& model,
               const Tokenizer& tokenizer, const VerifyOptions& options) {
  Verdict verdict;
  if (const auto found = difference(receipt.model, known)) {
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
  if (!found) found = chain_difference(receipt, replay.marks(), is_whole);
  verdict.answer = std::move(replay).answer();
  verdict.is_confirmed = !found;
  verdict.sentence = found.value_or(
      is_whole ? fmt::format("confirmed: {} tokens and their logits", all)
               : fmt::format("confirmed: the first {} of {} tokens", verdict.tokens, all));
  return verdict;
}

}  // namespace invar
