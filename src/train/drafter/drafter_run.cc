#include "train/drafter/drafter_run.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/timer.h"
#include "model/families/tensors.h"
#include "tokenizer/make_tokenizer.h"
#include "train/checkpoint.h"
#include "train/metrics_file.h"
#include "weights/hf_directory.h"
#include "weights/weights_digest.h"

namespace invar {

namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

class DrafterRun {
 public:
  DrafterRun(const DrafterRecipe& recipe, const DrafterRunOptions& options)
      : recipe_(recipe),
        options_(options),
        tokenizer_(Tokenizer::from_texts(read_tokenizer_texts(recipe.target), recipe.target)),
        training_(recipe.corpus_seed, corpus::Split::training, tokenizer_, recipe.corpus_kinds),
        held_out_(recipe.corpus_seed, corpus::Split::held_out, tokenizer_, recipe.corpus_kinds),
        packer_(training_, recipe.context, id_of_special(tokenizer_, kEndOfText)) {
    if (options.ranks != 1)
      fail_usage("expected 1 rank for a drafter's recipe, found {}", options.ranks);
    open_target();
    make_run_directory(options_);
    start();
  }

  DrafterRunResult run() {
    const int64_t last = recipe_.optimizer.steps, end = options_.end_of(last);
    MetricsFile metrics(options_.output, trainer_->steps_done());
    DrafterRunResult result;
    Timer timer;
    int64_t tokens = 0;
    while (trainer_->steps_done() < end && !(result.stopped = options_.stops())) {
      std::vector<PackedRow> rows;
      for (int i = 0; i < recipe_.rows; ++i) rows.push_back(packer_.next());
      DrafterProgress p{.report = trainer_->step(rows), .steps = last};
      tokens += p.report.tokens;
      p.tokens_per_second = static_cast<double>(tokens) / timer.seconds();
      p.seconds_left =
          static_cast<double>((last - p.report.step) * p.report.tokens) / p.tokens_per_second;
      const int64_t step = p.report.step;
      if (step == end || step % recipe_.evaluate_every == 0)
        p.held_out = result.held_out = evaluate();
      metrics.write(line_of(p));
      if (options_.progress) options_.progress(p);
      if (step == end || step % recipe_.save_every == 0) save();
    }
    if (result.stopped && trainer_->steps_done() > saved_) save();
    finish(result);
    return result;
  }

 private:
  void open_target() {
    const HfDirectory directory = open_hf_directory(recipe_.target);
    target_.recipe = recipe_;
    target_.target =
        parse_model_config(directory.config, directory.generation_config, recipe_.target);
    target_.weights = open_checkpoint(recipe_.target);
    target_.threads = options_.threads;
    target_.instruction_set = options_.instruction_set;
    check_tensors(target_.target.spec, *target_.weights);
    ThreadPool pool(1);
    target_digest_ = to_hex(weights_digest(*target_.weights, target_.weights->names(), pool));
    if (recipe_.drafter.method == DrafterMethod::eagle3)
      target_.frequent = frequent_tokens(training_, recipe_.drafter.vocab_documents,
                                         target_.target.spec.vocab, recipe_.drafter.vocab);
  }

  json::Value identity() const {
    json::Value identity = recipe_.identity();
    identity.set("target digest", target_digest_);
    return identity;
  }

  void start() {
    trainer_ = std::make_unique<DrafterTrainer>(target_);
    identity_ = identity();
    if (const auto state = load_checkpoint(options_.checkpoints(), identity_,
                                           trainer_->state_size(), options_.extends)) {
      identity_ = state->recipe;
      packer_.restore(state->data);
      trainer_ = std::make_unique<DrafterTrainer>(target_, &state->training);
    }
    saved_ = trainer_->steps_done();
  }

  std::vector<LevelScore> evaluate() {
    if (held_out_rows_.empty()) {
      RowPacker packer(held_out_, recipe_.context, id_of_special(tokenizer_, kEndOfText));
      while (packer.state().next < recipe_.evaluation_documents)
        held_out_rows_.push_back(packer.next());
    }
    return trainer_->evaluate(held_out_rows_);
  }

  static json::Value line_of(const DrafterProgress& p) {
    const auto list = [](const std::vector<LevelScore>& levels, double (*of)(const LevelScore&)) {
      json::Array values;
      for (const LevelScore& level : levels) values.push_back(of(level));
      return values;
    };
    json::Value line = json::Object{{"step", p.report.step},
                                    {"losses", list(p.report.levels, mean_loss)},
                                    {"agreement", list(p.report.levels, agreement)},
                                    {"gradient_norm", p.report.gradient_norm},
                                    {"rate", p.report.rate},
                                    {"tokens", p.report.tokens}};
    if (p.held_out.empty()) return line;
    line.set("held_out_losses", list(p.held_out, mean_loss));
    line.set("held_out_agreement", list(p.held_out, agreement));
    return line;
  }

  void save() {
    ThreadPool pool(1);
    RunState state{.data = packer_.state(), .recipe = identity_};
    trainer_->copy_state(state.training);
    save_checkpoint(
        options_.checkpoints(), state,
        [&](const std::string& directory) { trainer_->write(directory, pool); }, pool);
    saved_ = trainer_->steps_done();
  }

  void finish(DrafterRunResult& result) {
    ThreadPool pool(1);
    const TensorSource& weights = trainer_->weights();
    result.steps = trainer_->steps_done();
    result.weights_digest = to_hex(weights_digest(weights, weights.names(), pool));
    if (result.steps == recipe_.optimizer.steps)
      replace_directory(options_.model(),
                        [&](const std::string& directory) { trainer_->write(directory, pool); });
  }

  const DrafterRecipe recipe_;
  const DrafterRunOptions options_;
  DrafterOptions target_;
  std::string target_digest_;
  Tokenizer tokenizer_;
  corpus::Documents training_, held_out_;
  RowPacker packer_;
  std::unique_ptr<DrafterTrainer> trainer_;
  json::Value identity_;
  int64_t saved_ = 0;  // the step of the last checkpoint
  std::vector<PackedRow> held_out_rows_;
};

}  // namespace

double mean_loss(const LevelScore& score) {
  return score.loss / static_cast<double>(std::max<int64_t>(1, score.count));
}

double agreement(const LevelScore& score) {
  return static_cast<double>(score.agreed) / static_cast<double>(std::max<int64_t>(1, score.count));
}

DrafterRunResult run_drafter_training(const DrafterRecipe& recipe,
                                      const DrafterRunOptions& options) {
  return DrafterRun(recipe, options).run();
}

}  // namespace invar
