#include "speculate_arm.h"
#include "median.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "drafters/make_proposer.h"
#include "speculative/replay.h"

namespace invar::cli {

namespace {

constexpr int kContext = 1024;  // tokens of a sequence

// That this process has in memory.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// For each key the median of its values.
std::map<int64_t, double> medians(const std::map<int64_t, std::vector<double>>& values) {
  std::map<int64_t, double> medians;
  for (const auto& [key, of_key] : values) medians[key] = median(of_key);
  return medians;
}

}  // namespace

void Measured::add(const Measured& other) {
  steps.insert(steps.end(), other.steps.begin(), other.steps.end());
  seconds += other.seconds;
  cpu_seconds += other.cpu_seconds;
  tokens += other.tokens;
  drafts += other.drafts;
  draft_tokens += other.draft_tokens;
  accepted += other.accepted;
  tried += other.tried;
  changed += other.changed;
}

double Measured::rows_per_step() const {
  int64_t rows = 0;
  for (const Step& step : steps) rows += step.rows;
  return static_cast<double>(rows) / static_cast<double>(std::max<size_t>(1, steps.size()));
}

double Measured::predicted_rate() const {
  std::map<int64_t, std::vector<double>> verify, draft;
  for (const Step& step : steps) {
    verify[step.rows].push_back(step.verify);
    draft[step.wanted].push_back(step.draft);
  }
  const auto verify_of = medians(verify), draft_of = medians(draft);
  double total = 0;
  for (const Step& step : steps) total += verify_of.at(step.rows) + draft_of.at(step.wanted);
  return total > 0 ? static_cast<double>(tokens) / total : 0;
}

double Measured::mean_draft_seconds() const {
  double total = 0;
  for (const Step& step : steps) total += step.draft;
  return draft_tokens > 0 ? total / static_cast<double>(draft_tokens) : 0;
}

void Watch::propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  const Timer timer;
  inner().propose(requests, trees);
  step_.draft += timer.seconds();
  for (const DraftTree& tree : trees) step_.wanted += std::ssize(tree);
}

void Watch::observe_argmax(int64_t id, std::span<const int32_t> tokens) {
  const Timer timer;
  argmax_reader_->observe_argmax(id, tokens);
  step_.draft += timer.seconds();
}

void Watch::take_hidden(std::span<const KeptRows> kept, std::span<const float> hidden,
                        int64_t batch_rows) {
  const Timer timer;
  hidden_reader_->take_hidden(kept, hidden, batch_rows);
  step_.draft += timer.seconds();
}

void Watch::observe(int64_t id, int32_t proposed, int32_t accepted) {
  tried_ += std::min(accepted + 1, proposed);
  inner().observe(id, proposed, accepted);
}

void Watch::observe_step(int64_t rows, double seconds) {
  step_.rows = rows;
  step_.verify = seconds;
  inner().observe_step(rows, seconds);
}

class Arm::PaidReplay final : public Proposer {
 public:
  PaidReplay(Model& model, const ReplaySpec& spec, int batch)
      : spec_(spec), last_layer_(model.spec().layers - 1) {
    options_ = {.num_speculative_tokens = spec.tokens,
                .right = spec.right,
                .vocab = model.spec().vocab,
                .seed = 1};
    replay_ = std::make_unique<Replay>(options_, AnswerTokens());
    if (!spec.drafter.empty()) {
      drafter_ = make_proposer(config_of({.json = spec.drafter}), model,
                               {.max_sequences = batch, .context = kContext});
      if (drafter_ && drafter_->layer_sharer())
        fail_usage("expected a method with keys and values of its own to pay for, found {}",
                   drafter_->name());
    }
    if (!spec.pays || drafter_) return;
    executor_ = std::make_unique<Executor>(model, RunnerLimits{.blocks = batch,
                                                               .block_size = kBlockSize,
                                                               .max_rows = batch,
                                                               .max_logit_rows = batch,
                                                               .cells = batch});
    hidden_.assign(static_cast<size_t>(batch) * model.spec().hidden, 0.5f);
  }

  std::string_view name() const override { return "replay"; }
  int32_t most_nodes() const override { return spec_.tokens; }
  void know(const AnswerTokens& answers) { replay_ = std::make_unique<Replay>(options_, answers); }

  HiddenReader* hidden_reader() override { return drafter_ ? drafter_->hidden_reader() : nullptr; }
  void forget(int64_t id) override {
    if (drafter_) drafter_->forget(id);
  }
  void propose(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    std::vector<DraftTree> unused(trees.size());
    if (drafter_) drafter_->propose(requests, unused);
    replay_->propose(requests, trees);
    for (size_t level = 0; executor_ && level < static_cast<size_t>(spec_.tokens); ++level) {
      const auto going = static_cast<int32_t>(
          std::ranges::count_if(trees, [&](const DraftTree& tree) { return tree.size() > level; }));
      if (going > 0) pay(going);
    }
  }

 private:
  static constexpr int kBlockSize = 64;

  // A row of each sequence through the last layer and the head, and the likeliest token of each.
  void pay(int32_t rows) {
    Batch batch{.features = hidden_, .layer_begin = last_layer_};
    for (int32_t i = 0; i < rows; ++i) {
      batch.sequences.push_back({{i}, i});
      batch.rows.push_back({.token = 0, .position = 0, .sequence = i, .features = i});
      batch.logit_rows.push_back(i);
    }
    ForwardIo io;
    executor_->run(batch, io);
    const auto most = std::ranges::max_element(io.logits);
    argmax_ = static_cast<int64_t>(most - io.logits.begin());
  }

  const ReplaySpec spec_;
  const int last_layer_;
  ReplayOptions options_;
  std::unique_ptr<Replay> replay_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Proposer> drafter_;
  std::vector<float> hidden_;
  volatile int64_t argmax_ = 0;  // nobody reads it, and it is computed all the same
};

struct Arm::Keep final : OutputSink {
  void on_token(const TokenOutput& output) override {
    ++tokens;
    answers[output.request].push_back(output.token);
  }
  explicit Keep(AnswerTokens& answers) : answers(answers) {}
  AnswerTokens& answers;
  int64_t tokens = 0;
};

Arm::Arm(const std::shared_ptr<Model>& model, std::string config, int batch,
         const ReplaySpec* replay)
    : config_(std::move(config)) {
  InstanceOptions options{.model = model->options(),
                          .engine = {.kv_bytes = int64_t{1} << 30, .prefix_caching = false}};
  SchedulerOptions& scheduler = options.engine.scheduler;
  scheduler.max_num_seqs = batch;
  scheduler.max_num_batched_tokens = 512 + 64 * batch;
  scheduler.max_model_len = std::min(kContext, model->spec().max_positions);
  may_change_answers_ = !replay && !config_.empty() && config_of({.json = config_}).rejection;
  options.engine.rejection = may_change_answers_;
  options.proposer = [&](Model& target) { return make_watched(target, batch, replay); };
  instance_ = std::make_unique<Instance>(options, model);
}

std::unique_ptr<Proposer> Arm::make_watched(Model& model, int batch, const ReplaySpec* replay) {
  const int64_t before = resident_bytes();
  std::unique_ptr<Proposer> proposer;
  if (replay) {
    auto paid = std::make_unique<PaidReplay>(model, *replay, batch);
    replay_ = paid.get();
    proposer = with_lengths(std::move(paid), {.adaptive = replay->adaptive});
  } else if (!config_.empty()) {
    proposer = make_proposer(config_of({.json = config_}), model,
                             {.max_sequences = batch, .context = kContext});
  }
  if (!proposer) return nullptr;
  drafter_bytes_ = std::max<int64_t>(0, resident_bytes() - before);
  adaptive_ = dynamic_cast<const Adaptive*>(proposer.get());
  auto watch = std::make_unique<Watch>(std::move(proposer));
  watch_ = watch.get();
  return watch;
}

Arm::~Arm() = default;

void Arm::begin(const std::vector<Request>& requests, const AnswerTokens& plain) {
  if (replay_) replay_->know(plain);
  for (Request request : requests) {
    request.id = next_id_++;
    instance_->engine().add(std::move(request));
  }
  measured_ = {};
  answers_.clear();
}

bool Arm::step() {
  Engine& engine = instance_->engine();
  if (!engine.has_work()) return false;
  Keep sink(answers_);
  const double cpu_before = cpu_seconds();
  const Timer timer;
  engine.step(sink);
  const double seconds = timer.seconds(), cpu = cpu_seconds() - cpu_before;
  const StepStats& step = engine.last_step();
  Measured::Step parts{.rows = step.rows, .verify = seconds};
  if (watch_) parts = watch_->take_step();
  const int64_t tried = watch_ ? watch_->take_tried() : 0;
  if (step.work.prompt_rows > 0) return true;
  measured_.steps.push_back(parts);
  measured_.seconds += seconds;
  measured_.cpu_seconds += cpu;
  measured_.tokens += sink.tokens;
  measured_.drafts += step.drafts;
  measured_.draft_tokens += step.draft_tokens;
  measured_.accepted += step.accepted_tokens;
  measured_.tried += tried;
  return true;
}

Measured Arm::end() {
  return std::move(measured_);
}

}  // namespace invar::cli
