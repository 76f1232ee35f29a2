// A run of reinforcement learning: rollouts, what is learned from them, checkpoints.
#include "train/rl/rl_run.h"

#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/timer.h"
#include "model/families/trained_source.h"
#include "model/parameter_source.h"
#include "numerics/philox.h"
#include "train/checkpoint.h"
#include "train/rl/conversations.h"
#include "train/rl/policy_rows.h"
#include "train/rl/rl_metrics.h"
#include "train/rl/rollout_scores.h"
#include "train/rl/rounding.h"
#include "weights/hf_directory.h"
#include "weights/weights_digest.h"

namespace invar::rl {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kEvaluationSeed = 1;  // all runs are asked the same

uint64_t noise_seed(uint64_t seed, corpus::Split split, int64_t problem) {
  const auto bits =
      philox4x32({static_cast<uint32_t>(problem), static_cast<uint32_t>(problem >> 32),
                  static_cast<uint32_t>(split), static_cast<uint32_t>(RandomPurpose::rollout)},
                 seed);
  return bits[0] | uint64_t{bits[1]} << 32;
}

EngineOptions engine_options(const RlRecipe& recipe) {
  EngineOptions options = recipe.engine;
  options.scheduler.max_model_len = recipe.trainer.context;
  if (const LoraOptions& lora = recipe.trainer.lora; lora.is_on())
    options.adapters = {.most = 1, .most_rank = static_cast<int>(lora.settings.rank)};
  return options;
}

class Run {
 public:
  Run(const RlRecipe& recipe, const RlOptions& options)
      : recipe_(recipe),
        options_(options),
        texts_(read_tokenizer_texts(recipe.model)),
        tokenizer_(Tokenizer::from_texts(texts_, recipe.model)),
        source_(open_checkpoint(recipe.model)),
        pool_(1) {
    read_model();
    expect_drafts_do_not_show();
    rollouts_ = std::make_unique<Rollouts>(
        InstanceOptions{.model = {.model = recipe_.model,
                                  .arithmetic = recipe_.sampler.arithmetic,
                                  .weights = base_weights(recipe_.trainer.model),
                                  .device = options_.device,
                                  .instruction_set = options_.instruction_set,
                                  .threads = options_.threads},
                        .engine = engine_options(recipe_),
                        .speculation = options_.speculation},
        sampling());
    start();
  }

  RlResult run() {
    const int64_t last = recipe_.trainer.optimizer.steps;
    const int64_t end = options_.end_of(last);
    bool stopped = false;
    RlMetrics metrics(options_.output, trainer_->steps_done());
    hand_over();
    if (metrics.is_empty()) metrics.write_first(evaluate());
    Timer timer;
    int64_t tokens = 0;
    while (trainer_->steps_done() < end && !(stopped = options_.stops())) {
      RlProgress p = step();
      p.steps = last;
      tokens += p.mismatch.tokens;
      const int64_t step = p.report.step;
      const bool is_last = step >= end;
      if (is_last || passes(step, recipe_.evaluate_every)) p.evaluation = evaluate();
      const auto done = static_cast<double>(steps_here_ += recipe_.policy.updates);
      p.tokens_per_second = static_cast<double>(tokens) / timer.seconds();
      p.seconds_left = static_cast<double>(last - step) * timer.seconds() / done;
      metrics.write(p);
      if (options_.progress) options_.progress(p);
      if (is_last || passes(step, recipe_.save_every)) save(metrics);
    }
    if (stopped && trainer_->steps_done() > saved_) save(metrics);
    return finish(metrics, last, stopped);
  }

 private:
  // Whether the rollout that ended with this step went over a multiple of `every`.
  bool passes(int64_t step, int64_t every) const {
    return every > 0 && step / every != (step - recipe_.policy.updates) / every;
  }

  void open_policy() {
    TrainerOptions& t = recipe_.trainer;
    if (t.lora.is_on()) return open_base(recipe_.model, t.model, t.lora);
    const HfDirectory directory = open_hf_directory(recipe_.model);
    t.model = parse_model_config(directory.config, directory.generation_config, recipe_.model);
    const auto other =
        stores_otherwise(t.model.spec) ? decoder_tensors(t.model.spec, *source_) : nullptr;
    check_tensors(t.model.spec, other ? *other : *source_);
    // A module that predicts one token further drafts and is no part of the policy: it is neither
    // trained nor kept.
    t.model.spec.mtp_layers = 0;
  }

  void read_model() {
    TrainerOptions& t = recipe_.trainer;
    open_policy();
    columns_ = routed_columns(t.model.spec);
    scores_.emplace(recipe_, columns_);
    if (recipe_.sampler.replays_routes && columns_ == 0)
      fail_usage("{}: expected a model with experts, whose routes are replayed, found {}",
                 recipe_.path, t.model.spec.family);
    if (tokenizer_.vocab_size() > t.model.spec.vocab)
      fail_usage("{}: expected a tokenizer of at most {} tokens, the model's vocabulary, found {}",
                 recipe_.model, t.model.spec.vocab, tokenizer_.vocab_size());
    if (t.model.eos_ids.empty()) t.model.eos_ids = {id_of_special(tokenizer_, "<|im_end|>")};
    t.threads = options_.threads;
    t.ranks = options_.ranks;
    t.device = options_.device;
    t.instruction_set = options_.instruction_set;
  }

  SamplingParams sampling() const {
    SamplingParams params = recipe_.trainer.sampled;
    params.max_tokens = recipe_.max_tokens;
    params.stop_token_ids = recipe_.trainer.model.eos_ids;
    params.logprobs_mode = LogprobsMode::processed_logprobs;
    return params;
  }

  void expect_drafts_do_not_show() const {
    if (options_.speculation.is_on() && recipe_.sampler.arithmetic == "control")
      fail_usage(
          "{}: expected no drafts for a sampler that computes by control, whose answers they would "
          "change",
          recipe_.path);
  }

  void start() {
    make_run_directory(options_);
    const TensorSource& first =
        recipe_.trainer.lora.is_on() ? recipe_.trainer.lora.base->as_stored() : *source_;
    identity_ = recipe_.identity(to_hex(weights_digest(first, first.names(), pool_)));
    if (!recipe_.own.file.empty()) {
      own_ = std::make_unique<OwnProblems>(recipe_.own);
      identity_.set("problems", own_->digest());
      identity_.set("reward", own_->judge_name());
    }
    const TrainerOptions& t = recipe_.trainer;
    const auto saved =
        load_checkpoint(options_.checkpoints(), identity_,
                        trained_layout(t.model.spec, t.lora).size(), options_.extends);
    if (saved) identity_ = saved->recipe;
    trainer_ = saved ? std::make_unique<Trainer>(t, saved->training) : first_trainer();
    saved_ = trainer_->steps_done();
    if (recipe_.policy.reference > 0) reference_ = first_trainer();
  }

  // Before the first step: the first weights, or with an adapter that does not change them yet.
  std::unique_ptr<Trainer> first_trainer() const {
    const TrainerOptions& t = recipe_.trainer;
    if (t.lora.is_on()) return std::make_unique<Trainer>(t, t.lora.seed);
    return std::make_unique<Trainer>(t, starting_state(t.model.spec, *source_));
  }

  // The sampler goes on with the trainer's weights, or with what the recipe makes of them.
  void hand_over() {
    if (recipe_.trainer.lora.is_on()) return hand_over_adapter();
    if (recipe_.sampler.weights == "exact") return take_weights(trainer_->weights());
    const std::vector<bf16_t> rounded =
        rounded_weights(trainer_->layout(), trainer_->weights(), recipe_.sampler.weights);
    take_weights(ParameterSource(trainer_->layout(), rounded.data()));
  }

  // Every step's adapter goes through the same files, which the sampler reads at once.
  void hand_over_adapter() {
    const std::string directory = (fs::path(options_.output) / "sampler").string();
    write_model(directory, *trainer_, texts_, pool_);
    rollouts_->take_adapter(directory);
  }

  void take_weights(const TensorSource& stored) {
    const DecoderSpec& spec = recipe_.trainer.model.spec;
    const auto other = decoder_form(spec, stored);
    rollouts_->take_weights(other ? *other : stored);
  }

  // Answers to `count` problems from number `first` on.
  Rollout sample(uint64_t seed, corpus::Split split, int64_t first, int64_t count, int answers,
                 int64_t step) {
    Rollout rollout{.answers_each = static_cast<size_t>(answers)};
    std::vector<Question> questions;
    for (int64_t i = first; i < first + count; ++i) {
      rollout.problems.push_back(own_ ? own_->make(split, i)
                                      : make_problem(seed, split, i, recipe_.tasks));
      rollout.prompts.push_back(tokenizer_.encode(rollout.problems.back().prompt));
      for (int32_t choice = 0; choice < answers; ++choice)
        questions.push_back(
            {rollout.prompts.back(), noise_seed(seed, split, i), choice, columns_ > 0});
    }
    const bool is_held_out = split == corpus::Split::held_out_problems;
    const auto judge = [&](const Spoken& spoken) -> Judgement {
      if (own_) return own_->judge(spoken);
      return {.reward = reward(spoken.problem, spoken.answer, spoken.ended), .message = {}};
    };
    converse(rollout, questions, is_held_out ? -count : first * answers, step, *rollouts_,
             tokenizer_,
             {.turns = recipe_.turns, .context = recipe_.trainer.context, .judge = judge});
    return rollout;
  }

  // Mean reward over the held-out problems, by the run's own sampler.
  double evaluate() {
    if (recipe_.evaluation_problems == 0) return -1;
    const Rollout rollout = sample(kEvaluationSeed, corpus::Split::held_out_problems, 0,
                                   recipe_.evaluation_problems, 1, trainer_->steps_done());
    double sum = 0;
    for (const double r : rollout.rewards) sum += r;
    return sum / static_cast<double>(rollout.rewards.size());
  }

  // One rollout and what is learned from it: a step of the optimizer, or several.
  RlProgress step() {
    const int64_t step = trainer_->steps_done() + 1;
    const int64_t number = trainer_->steps_done() / recipe_.policy.updates;
    RlProgress p;
    Timer timer;
    const Rollout rollout = sample(recipe_.seed, corpus::Split::problems, number * recipe_.prompts,
                                   recipe_.prompts, recipe_.answers, step);
    p.rollout_seconds = timer.seconds();
    TokenScores scores = scores_->score(rollout, *trainer_);
    p.entropy = scores.entropy;
    scores_->expect_one_policy(step, rollout, scores);
    p.mismatch = scores_->mismatch(rollout, scores);
    p.drafts = rollouts_->drafts();
    if (columns_ > 0) scores_->compare_routes(step, rollout, *trainer_, p);
    summarize(rollout, p);
    for (int update = 0; update < recipe_.policy.updates; ++update) {
      if (update > 0) scores = scores_->score(rollout, *trainer_);
      if (update > 0) p.last_update = scores_->mismatch(rollout, scores);
      p.report = trainer_->step(make_training_sample(rollout, scores).rows,
                                static_cast<double>(rollout.answers.size()));
    }
    hand_over();
    p.training_seconds = timer.seconds() - p.rollout_seconds;
    return p;
  }

  static void summarize(const Rollout& rollout, RlProgress& p) {
    std::array<double, kTaskNames.size()> counts{};
    const auto answers = static_cast<double>(rollout.answers.size());
    for (size_t i = 0; i < rollout.answers.size(); ++i) {
      const auto task = static_cast<size_t>(rollout.problems[i / rollout.answers_each].task);
      p.reward += rollout.rewards[i] / answers;
      p.task_rewards[task] += rollout.rewards[i];
      counts[task] += 1;
      p.ended += rollout.answers[i].ended / answers;
    }
    for (size_t task = 0; task < counts.size(); ++task) p.task_rewards[task] /= counts[task];
    p.answer_tokens = static_cast<double>(p.mismatch.tokens) / answers;
  }

  // Rows whose weights are the policy's loss. Answers that teach nothing are left out.
  PackedAnswers make_training_sample(const Rollout& rollout, const TokenScores& scores) const {
    TokenScores reference;
    if (reference_) reference = scores_->score(rollout, *reference_);
    const Lesson lesson{.rollout = rollout,
                        .scores = scores,
                        .reference = reference_ ? &reference : nullptr,
                        .advantages = advantages_of(rollout, recipe_.policy.method),
                        .most_tokens = double(recipe_.max_tokens) * recipe_.turns};
    const std::vector<size_t> chosen = lesson.chosen();
    PackedAnswers sample = scores_->pack(rollout, chosen);
    weigh(lesson, recipe_.policy, chosen, sample);
    return sample;
  }

  void save(const RlMetrics& metrics) {
    save_checkpoint(options_.checkpoints(), *trainer_, {}, identity_, texts_, pool_);
    saved_ = trainer_->steps_done();
    metrics.draw(recipe_.name);
  }

  RlResult finish(const RlMetrics& metrics, int64_t last, bool stopped) {
    const TensorSource& weights = trainer_->weights();
    if (trainer_->steps_done() == last)
      write_model(options_.result(recipe_.trainer.lora.is_on()), *trainer_, texts_, pool_);
    return {.steps = trainer_->steps_done(),
            .stopped = stopped,
            .first_evaluation = metrics.first_evaluation(),
            .last_evaluation = metrics.last_evaluation(),
            .weights_digest = to_hex(weights_digest(weights, weights.names(), pool_))};
  }

  RlRecipe recipe_;
  RlOptions options_;
  TokenizerTexts texts_;
  Tokenizer tokenizer_;
  std::unique_ptr<TensorSource> source_;  // the first weights
  ThreadPool pool_;
  json::Value identity_;
  std::unique_ptr<OwnProblems> own_;  // or null
  std::unique_ptr<Rollouts> rollouts_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Trainer> reference_;  // of the first weights, or null
  std::optional<RolloutScores> scores_;
  int64_t columns_ = 0;  // experts that a token goes through, in all layers
  int64_t steps_here_ = 0;
  int64_t saved_ = 0;  // the step of the last checkpoint
};

}  // namespace

RlResult run_rl(const RlRecipe& recipe, const RlOptions& options) {
  return Run(recipe, options).run();
}

}  // namespace invar::rl
