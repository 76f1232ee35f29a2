#include "train/rl/rollouts.h"

#include "base/error.h"
#include "engine/engine_driver.h"
#include "session/adapter.h"

namespace invar::rl {

namespace {

class AnswerSink final : public OutputSink {
 public:
  explicit AnswerSink(size_t count) : answers(count) {}

  void on_token(const TokenOutput& output) override {
    if (output.error && failure.empty())
      failure =
          fmt::format("sequence {}, token {}: {}", output.request, output.index, output.error);
    if (output.error) return;
    Answer& answer = answers[static_cast<size_t>(output.request)];
    answer.tokens.push_back(output.token);
    answer.log_probabilities.push_back(output.logprobs->logprob);
    answer.ended = output.finish == FinishReason::stop;
    answer.routed_experts = output.routed_experts;
  }

  std::vector<Answer> answers;
  std::string failure;
};

}  // namespace

Rollouts::Rollouts(const InstanceOptions& options, const SamplingParams& sampling)
    : instance_(options), sampling_(sampling) {
  sampling_.logprobs = 0;
}

void Rollouts::take_adapter(const std::string& directory) {
  adapter_ = open_adapter("the trained adapter", directory, model().spec(), AdapterUser::trainer);
}

std::vector<Answer> Rollouts::answer(std::span<const Question> questions, int64_t step) {
  AnswerSink sink(questions.size());
  Engine& engine = instance_.engine();
  for (size_t i = 0; i < questions.size(); ++i) {
    Request request{.id = static_cast<int64_t>(i),
                    .prompt = questions[i].prompt,
                    .params = sampling_,
                    .choice = questions[i].choice,
                    .adapter = adapter_,
                    .hash_logits = false,
                    .routed_experts = questions[i].routed_experts};
    // The recipe says both: how long an answer may be, and the context that it stands in.
    request.params.max_tokens =
        length_that_fits(sampling_.max_tokens, request.prompt.size(), engine.max_model_len());
    request.params.seed = questions[i].seed;
    engine.add(std::move(request));
  }
  EngineDriver(engine).run(sink, [&](const StepStats& step) {
    drafts_.tokens += step.draft_tokens;
    drafts_.accepted += step.accepted_tokens;
  });
  if (!sink.failure.empty()) fail("step {}: {}", step, sink.failure);
  return std::move(sink.answers);
}

}  // namespace invar::rl
