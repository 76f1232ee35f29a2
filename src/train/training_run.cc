#include "train/training_run.h"

#include <cmath>
#include <filesystem>
#include <future>
#include <optional>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/sha256.h"
#include "base/timer.h"
#include "plot/plot.h"
#include "tokenizer/make_tokenizer.h"
#include "tokenizer/train_bpe.h"
#include "tokenizer/write_tokenizer.h"
#include "train/checkpoint.h"
#include "train/corpus/corpus.h"
#include "train/metrics_file.h"
#include "weights/hf_directory.h"
#include "weights/weights_digest.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

// A byte-level BPE of the corpus's first documents and a little other English, so that no word of
// either is cut needlessly.
TokenizerTexts learned_tokenizer(const Recipe& recipe) {
  const SpecialTokens special = chatml_tokens();
  WordCounter counter(kQwen2Pattern);
  for (int64_t i = 0; i < recipe.tokenizer_documents; ++i) {
    const corpus::Sample sample =
        corpus::make_sample(recipe.corpus_seed, corpus::Split::training, i, recipe.corpus_kinds);
    if (sample.turns.empty()) counter.add(sample.story);
    for (const corpus::Turn& turn : sample.turns)
      counter.add(turn.user), counter.add(turn.assistant);
  }
  counter.add(built_in_text());
  const auto size = recipe.trainer.model.spec.vocab - static_cast<int32_t>(special.names.size());
  return write_tokenizer(train_bpe(counter.counts(), size, 1), special);
}

TokenizerTexts tokenizer_of(const Recipe& recipe) {
  if (recipe.tokenizer_from.empty()) return learned_tokenizer(recipe);
  return read_tokenizer_texts(recipe.tokenizer_from);
}

std::string digest_of(const TensorSource& weights) {
  ThreadPool pool(1);
  return to_hex(weights_digest(weights, weights.names(), pool));
}

// The rows of a step and where the documents stand after them.
struct StepRows {
  std::vector<PackedRow> rows;
  RowPacker::State data;
};

StepRows take_rows(RowPacker& packer, int count) {
  StepRows step;
  for (int i = 0; i < count; ++i) step.rows.push_back(packer.next());
  step.data = packer.state();
  return step;
}

// metrics.jsonl and the curves over it.
class Metrics {
 public:
  Metrics(const fs::path& directory, int64_t step)
      : directory_(directory), file_(directory, step) {}

  void write(const RunProgress& p) {
    json::Array exits(p.report.exit_losses.begin(), p.report.exit_losses.end());
    json::Value line =
        json::Object{{"step", p.report.step},           {"loss", p.report.loss},
                     {"exit_losses", std::move(exits)}, {"gradient_norm", p.report.gradient_norm},
                     {"rate", p.report.rate},           {"tokens", p.report.tokens},
                     {"seconds", p.report.seconds}};
    if (p.report.mtp_loss > 0) line.set("mtp_loss", p.report.mtp_loss);
    if (p.held_out_loss >= 0) line.set("held_out_loss", p.held_out_loss);
    if (const MtpScore& mtp = p.held_out_mtp; mtp.count > 0) {
      line.set("held_out_mtp_loss", mtp.loss / static_cast<double>(mtp.count));
      line.set("mtp_acceptance", static_cast<double>(mtp.agreed) / static_cast<double>(mtp.count));
    }
    file_.write(std::move(line));
  }

  void draw(const std::string& title) const {
    Curve loss{"training", {}}, held_out{"held out", {}};
    for (const json::Value& line : file_.lines()) {
      const double step = line.find("step")->as_number();
      loss.points.emplace_back(step, line.find("loss")->as_number());
      if (const auto* value = line.find("held_out_loss"))
        held_out.points.emplace_back(step, value->as_number());
    }
    write_file_atomically((directory_ / "curves.svg").string(),
                          plot_svg({.title = title + ": loss",
                                    .x_title = "step",
                                    .y_title = "loss (nats per token)",
                                    .curves = {loss, held_out}}));
  }

 private:
  fs::path directory_;
  MetricsFile file_;
};

class Run {
 public:
  Run(Recipe recipe, const RunOptions& options)
      : recipe_(std::move(recipe)),
        options_(options),
        texts_(tokenizer_of(recipe_)),
        tokenizer_(Tokenizer::from_texts(texts_, "tokenizer")),
        training_(recipe_.corpus_seed, corpus::Split::training, tokenizer_, recipe_.corpus_kinds),
        held_out_(recipe_.corpus_seed, corpus::Split::held_out, tokenizer_, recipe_.corpus_kinds),
        packer_(training_, recipe_.trainer.context, id_of_special(tokenizer_, "<|endoftext|>")) {
    fill_options();
    if (options_.writes()) make_run_directory(options_);
    start();
  }

  RunResult run() {
    const int64_t last = recipe_.trainer.optimizer.steps;
    const int64_t end = options_.end_of(last);
    std::optional<Metrics> metrics;
    if (options_.writes()) metrics.emplace(options_.output, trainer_->steps_done());
    RunResult result;
    Timer timer;
    int64_t tokens = 0;
    auto rows = next_rows();
    while (trainer_->steps_done() < end && !(result.stopped = options_.stops())) {
      StepRows now = rows.get();
      const bool more = trainer_->steps_done() + 1 < end;
      if (more) rows = next_rows();
      RunProgress p{.report = trainer_->step(now.rows), .steps = last};
      data_ = std::move(now.data);
      tokens += p.report.tokens;
      p.tokens_per_second = static_cast<double>(tokens) / timer.seconds();
      p.seconds_left =
          static_cast<double>((last - p.report.step) * p.report.tokens) / p.tokens_per_second;
      const int64_t step = p.report.step;
      if (step == end || step % recipe_.evaluate_every == 0) {
        p.held_out_loss = result.held_out_loss = held_out_loss();
        if (recipe_.trainer.model.spec.mtp_layers > 0)
          p.held_out_mtp = result.held_out_mtp = trainer_->score_mtp(held_out_rows_);
      }
      if (metrics) metrics->write(p);
      if (metrics && options_.progress) options_.progress(p);
      if (step == end || step % recipe_.save_every == 0) save(metrics);
    }
    if (result.stopped && trainer_->steps_done() > saved_) save(metrics);
    result.steps = trainer_->steps_done();
    trainer_->read_together([&] {
      ThreadPool pool(1);
      result.weights_digest = digest_of(trainer_->weights());
      if (result.steps == last)
        write_model(options_.result(!recipe_.base.empty()), *trainer_, texts_, pool);
    });
    return result;
  }

 private:
  void fill_options() {
    TrainerOptions& t = recipe_.trainer;
    t.threads = options_.threads;
    t.ranks = options_.ranks;
    t.group = options_.group;
    t.device = options_.device;
    t.instruction_set = options_.instruction_set;
    if (!recipe_.base.empty()) {
      open_base(recipe_.base, t.model, t.lora);
      base_digest_ = digest_of(t.lora.base->as_stored());
    }
    t.model.bos_id = id_of_special(tokenizer_, "<|endoftext|>");
    t.model.eos_ids = {id_of_special(tokenizer_, "<|endoftext|>"),
                       id_of_special(tokenizer_, "<|im_end|>")};
    if (tokenizer_.vocab_size() > t.model.spec.vocab)
      fail_usage("{}: expected a vocabulary of at least {} tokens, found {}", recipe_.path,
                 tokenizer_.vocab_size(), t.model.spec.vocab);
    if (recipe_.teacher.empty()) return;
    const HfDirectory directory = open_hf_directory(recipe_.teacher);
    t.teacher.model =
        parse_model_config(directory.config, directory.generation_config, recipe_.teacher);
    t.teacher.weights = open_checkpoint(recipe_.teacher);
    check_tensors(t.teacher.model.spec, *t.teacher.weights);
    teacher_digest_ = digest_of(*t.teacher.weights);
    t.teacher.model.spec.mtp_layers = 0;
  }

  // The recipe's, and what stands in the directories that it names.
  json::Value identity() const {
    json::Value identity = recipe_.identity();
    identity.set("tokenizer digest",
                 to_hex(sha256(std::as_bytes(std::span(texts_.tokenizer_json)))));
    if (!recipe_.teacher.empty()) identity.set("teacher digest", teacher_digest_);
    if (!recipe_.base.empty()) identity.set("base digest", base_digest_);
    return identity;
  }

  void start() {
    const TrainerOptions& t = recipe_.trainer;
    const int64_t size = trained_layout(t.model.spec, t.lora).size();
    identity_ = identity();
    if (const auto saved =
            find_saved_run(options_.checkpoints(), identity_, size, options_.extends)) {
      identity_ = saved->recipe;
      packer_.restore(saved->data);
      data_ = saved->data;
      trainer_ = std::make_unique<Trainer>(recipe_.trainer, saved->step, *saved->arrays);
    } else {
      trainer_ = std::make_unique<Trainer>(t, t.lora.is_on() ? t.lora.seed : recipe_.seed);
    }
    saved_ = trainer_->steps_done();
  }

  // Written while a step computes.
  std::future<StepRows> next_rows() {
    return std::async(std::launch::async,
                      [this] { return take_rows(packer_, recipe_.trainer.rows); });
  }

  // Mean over the learned tokens of the first documents held out.
  double held_out_loss() {
    if (held_out_rows_.empty()) {
      RowPacker packer(held_out_, recipe_.trainer.context,
                       id_of_special(tokenizer_, "<|endoftext|>"));
      while (packer.state().next < recipe_.evaluation_documents)
        held_out_rows_.push_back(packer.next());
    }
    const std::vector<float> log_probabilities = trainer_->log_probabilities(held_out_rows_);
    double sum = 0, count = 0;
    size_t t = 0;
    for (const PackedRow& row : held_out_rows_)
      for (const float weight : row.weights) {
        if (weight != 0) sum -= double{weight} * log_probabilities[t], count += weight;
        ++t;
      }
    return sum / count;
  }

  // On every rank: each has a part of it. The first alone writes.
  void save(const std::optional<Metrics>& metrics) {
    saved_ = trainer_->steps_done();
    trainer_->read_together([&] {
      ThreadPool pool(1);
      save_checkpoint(options_.checkpoints(), *trainer_, data_, identity_, texts_, pool);
    });
    if (metrics) metrics->draw(recipe_.name);
  }

  Recipe recipe_;
  RunOptions options_;
  TokenizerTexts texts_;
  std::string teacher_digest_, base_digest_;
  Tokenizer tokenizer_;
  corpus::Documents training_, held_out_;
  RowPacker packer_;
  RowPacker::State data_;  // after the trainer's last step
  std::unique_ptr<Trainer> trainer_;
  json::Value identity_;
  int64_t saved_ = 0;  // the step of the last checkpoint
  std::vector<PackedRow> held_out_rows_;
};

}  // namespace

RunResult run_training(Recipe recipe, const RunOptions& options) {
  return Run(std::move(recipe), options).run();
}

}  // namespace invar
