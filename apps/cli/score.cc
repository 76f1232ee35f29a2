// invar score: log-probabilities of given tokens, printed so that they parse back to the same f32.
#include <fmt/format.h>

#include "base/error.h"
#include "command.h"
#include "frontend/text_engine.h"
#include "help_format.h"

namespace invar::cli {

namespace {

struct ScoreFlags {
  ModelFlags model;
  EngineFlags engine;
  std::optional<std::string> text;
  std::vector<int32_t> tokens;
};

int run_score(ScoreFlags flags) {
  if (flags.text.has_value() != flags.tokens.empty())
    fail_usage("expected either --text or --tokens, found {}", flags.text ? "both" : "neither");
  if (flags.text && flags.text->empty())
    fail_usage("expected a --text of at least one character, found an empty one");
  flags.engine.options.prompt_logprobs = true;
  const InstanceOptions options = instance_options(flags.model, flags.engine);
  auto tokenizer_beside = open_tokenizer_beside(options.model);
  const auto model = open_with_progress(options);
  const Tokenizer tokenizer = tokenizer_beside.get();
  Instance instance(options, model);
  say_context(instance);
  TextEngine text(instance.engine(), tokenizer);
  Request request{.prompt = flags.text ? tokenizer.encode(*flags.text) : flags.tokens};
  request.params.max_tokens = 1;
  request.params.temperature = 0;
  request.params.prompt_logprobs = 0;
  const TextAnswer answer = text.answer(std::move(request));
  if (answer.finish == FinishReason::failed) fail("a key, a value or a logit was not finite");

  if (flags.model.json) {
    json::Value out;
    json::Array tokens, logprobs{json::Value()};  // the first token has no probability
    for (const int32_t id : answer.prompt_tokens) tokens.push_back(json::Value(id));
    for (const TokenLogprobs& l : answer.prompt_logprobs)
      logprobs.push_back(json::Value(double{l.logprob}));
    out.set("tokens", std::move(tokens));
    out.set("logprobs", std::move(logprobs));
    out.set("identity", model->identity());
    if (const std::string made = made_weights(model->options()); !made.empty())
      out.set("weights", made);
    fmt::print("{}\n", json::dump(out, 2));
    return 0;
  }
  double total = 0;
  for (size_t i = 0; i < answer.prompt_logprobs.size(); ++i) {
    const int32_t id = answer.prompt_tokens[i + 1];
    fmt::print("{:8} {:>14} {}\n", id, answer.prompt_logprobs[i].logprob,
               json::dump(json::Value(tokenizer.decode({&id, 1}, {.skip_special = false}))));
    total += answer.prompt_logprobs[i].logprob;
  }
  fmt::print("sum {:.6f} over {} tokens  {}\n", total, answer.prompt_logprobs.size(),
             model->identity());
  if (const std::string made = made_weights(model->options()); !made.empty())
    fmt::print("weights: {}\n", made);
  return 0;
}

}  // namespace

void add_score(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("score", "Print the log-probabilities of a given text");
  auto flags = std::make_shared<ScoreFlags>();
  add_model_flags(*command, flags->model);
  add_engine_flags(*command, flags->engine);
  command->add_option("--text", flags->text, "Text to score");
  command->add_option("--tokens", flags->tokens, "Token ids to score, separated by commas")
      ->delimiter(',');
  show_first(*command, {{"Text", {"--text", "--tokens", "--json"}},
                        {"Speed and memory",
                         {"--device", "--threads", "--tensor-parallel-size", "--max-model-len"}}});
  command->callback([&action, flags] { action = [flags] { return run_score(*flags); }; });
}

}  // namespace invar::cli
