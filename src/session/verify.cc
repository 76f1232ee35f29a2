#include "session/verify.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/input_file.h"
#include "base/timer.h"
#include "engine/executor.h"
#include "engine/request_state.h"
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
  if (said.weights != known.weights) return of("the weights differ", said.weights, known.weights);
  if (said.tokenizer != known.tokenizer)
    return of("the tokenizer differs", said.tokenizer, known.tokenizer);
  if (said.chat_template != known.chat_template)
    return of("the chat template differs", said.chat_template, known.chat_template);
  return std::nullopt;
}

// Goes along the answer, position by position, as the engine would.
class Replay {
 public:
  Replay(const Receipt& receipt, Model& model, const Tokenizer& tokenizer, int64_t count)
      : receipt_(receipt),
        model_(model),
        tokenizer_(tokenizer),
        count_(count),
        state_(request_of(receipt, tokenizer), static_cast<int32_t>(model.spec().vocab),
               static_cast<int32_t>(model.spec().hidden)),
        builder_(tokenizer, state_.request),
        hashers_(static_cast<size_t>(model.pool().size())) {}

  // Nothing, or what differs first.
  std::optional<std::string> run() {
    std::vector<int32_t> tokens = receipt_.prompt;
    tokens.insert(tokens.end(), receipt_.tokens.begin(), receipt_.tokens.begin() + count_);
    const auto rows = static_cast<int32_t>(tokens.size()) - 1;  // the last token is only predicted
    Executor executor(model_, limits_for(rows));
    BatchSequence own;
    for (int32_t i = 0; i * kBlock < rows; ++i) own.blocks.push_back(i);
    const auto first = static_cast<int32_t>(receipt_.prompt.size()) - 1;
    for (int32_t begin = 0; begin < rows && !found_; begin += kRows) {
      Batch batch{.sequences = {own}};
      for (int32_t i = begin; i < std::min(begin + kRows, rows); ++i) {
        if (i >= first) batch.logit_rows.push_back(i - begin);
        batch.rows.push_back({tokens[static_cast<size_t>(i)], i, 0});
      }
      ForwardIo io;
      io.take_logits = [&](int64_t, std::span<const float> logits) { take(logits); };
      executor.run(batch, io);
      if (std::ranges::find(io.non_finite, true) != io.non_finite.end())
        fail("a key, a value or a logit was not finite");
    }
    return found_;
  }

  const std::vector<Digest>& marks() const { return marks_; }
  std::string logits_hash() const { return to_hex(state_.hash.value()); }

 private:
  static constexpr int32_t kBlock = 64;

  static Request request_of(const Receipt& receipt, const Tokenizer& tokenizer) {
    Request request{.prompt = receipt.prompt,
                    .params = receipt.params,
                    .choice = receipt.choice,
                    .stop = receipt.stop,
                    .include_stop = receipt.include_stop,
                    .skip_special = receipt.skip_special};
    if (!receipt.form.empty())
      request.constraint =
          ConstraintCompiler(tokenizer).compile(json::parse(receipt.form, "the form of a receipt"));
    return request;
  }

  static RunnerLimits limits_for(int32_t rows) {
    return {.blocks = rows / kBlock + 1, .block_size = kBlock, .max_rows = std::min(rows, kRows)};
  }

  // Logits of the next positions.
  void take(std::span<const float> logits) {
    const auto vocab = static_cast<size_t>(model_.spec().vocab);
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
    const TokenOutput output = state_.take(said, digest);
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
  Model& model_;
  const Tokenizer& tokenizer_;
  const int64_t count_;
  RequestState state_;
  AnswerBuilder builder_;
  Sampler sampler_;
  std::vector<PositionHasher> hashers_;  // one for each thread
  std::vector<Digest> digests_;
  std::vector<Digest> marks_;
  std::optional<std::string> found_;
};

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

ReceiptModel receipt_model(const ModelOptions& options, const std::string& identity,
                           const Digest& weights, const std::string& template_file) {
  ReceiptModel model{.arithmetic = identity, .weights = to_hex(weights)};
  std::string files;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json",
                           "special_tokens_map.json", "added_tokens.json"}) {
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

Verdict verify(const Receipt& receipt, const ReceiptModel& known, Model& model,
               const Tokenizer& tokenizer, int64_t prefix) {
  Verdict verdict;
  if (const auto found = difference(receipt.model, known)) {
    verdict.sentence = *found;
    return verdict;
  }
  check_request(receipt, model);
  const int64_t all = std::ssize(receipt.tokens);
  verdict.tokens = prefix > 0 ? std::min(prefix, all) : all;
  const Timer timer;
  Replay replay(receipt, model, tokenizer, verdict.tokens);
  std::optional<std::string> found = replay.run();
  verdict.seconds = timer.seconds();
  const std::vector<std::string> chain = chain_of(receipt, replay.marks());
  const bool is_whole = verdict.tokens == all;
  if (!found && is_whole && chain.size() != receipt.chain.size())
    found = fmt::format("the chain differs: expected {} links, found {}", chain.size(),
                        receipt.chain.size());
  for (size_t i = 0; i < chain.size() && !found; ++i)
    if (i >= receipt.chain.size() || chain[i] != receipt.chain[i])
      found = fmt::format(
          "link {} of the chain differs: what stands before the answer, or logits "
          "of tokens {} to {}",
          i + 1, i * kReceiptLink + 1,
          std::min<size_t>((i + 1) * kReceiptLink, receipt.tokens.size()));
  if (!found && is_whole && replay.logits_hash() != receipt.logits_hash)
    found = fmt::format("the logits hash differs: the receipt says {}, the model says {}",
                        json::quoted(receipt.logits_hash), replay.logits_hash());
  verdict.is_confirmed = !found;
  verdict.sentence = found.value_or(
      is_whole ? fmt::format("confirmed: {} tokens and their logits", all)
               : fmt::format("confirmed: the first {} of {} tokens", verdict.tokens, all));
  return verdict;
}

}  // namespace invar
