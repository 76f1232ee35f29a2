#include "train/drafter/drafter_trainer.h"

#include <algorithm>
#include <numeric>

#include "base/atomic_file.h"
#include "base/error.h"
#include "kernels/select.h"
#include "train/packed_batch.h"

namespace invar {

namespace {

constexpr int kMaxAuxLayers = 3;

TeacherOptions target_of(const DrafterOptions& options) {
  TeacherOptions target{.model = options.target, .weights = options.weights};
  target.model.spec.mtp_layers = 0;
  return target;
}

const DrafterRecipe& checked(const DrafterOptions& options) {
  check_drafter(options.recipe, options.target.spec);
  return options.recipe;
}

}  // namespace

DrafterTrainer::DrafterTrainer(const DrafterOptions& options, const TrainingState* state)
    : recipe_(checked(options)),
      device_(make_host_device()),
      pool_(options.threads),
      math_(*device_, pool_, options.instruction_set, recipe_.batch_rows * recipe_.context),
      target_(target_of(options), select_kernels(Order::portable, options.instruction_set),
              *device_, pool_, recipe_.batch_rows, recipe_.context, kMaxAuxLayers) {
  const DrafterTarget target{.model = options.target,
                             .weights = *options.weights,
                             .final_norm = target_.decoder().weights->final_norm()};
  graph_ = make_drafter_graph(recipe_.drafter, recipe_.optimizer, target, options.frequent,
                              *device_, math_);
  DrafterParameters& parameters = graph_->parameters();
  if (state) {
    if (std::ssize(state->master) != parameters.size())
      fail("expected a training state of {} numbers, found {}", parameters.size(),
           state->master.size());
    step_ = state->step;
    parameters.load(*state);
  } else {
    parameters.load(parameters.first_state(recipe_.seed, *options.weights));
  }
  graph_->publish();
}

DrafterReport DrafterTrainer::step(std::span<const PackedRow> rows) {
  const int64_t step = step_ + 1;
  DrafterReport report{.step = step,
                       .levels = std::vector<LevelScore>(graph_->levels()),
                       .rate = learning_rate(recipe_.optimizer, step),
                       .tokens = std::ssize(rows) * recipe_.context};
  double total = 0;
  for (const PackedRow& row : rows)
    total += std::accumulate(row.weights.begin(), row.weights.end(), 0.0);
  graph_->parameters().clear_gradients(pool_);
  run(rows, total, true, report.levels);
  const ScopedFlushToZero flush;
  std::string failure;
  report.gradient_norm = graph_->parameters().update(step, math_.on(), failure);
  if (!failure.empty()) fail("step {}: {} is not finite", step, failure);
  graph_->publish();
  step_ = step;
  return report;
}

std::vector<LevelScore> DrafterTrainer::evaluate(std::span<const PackedRow> rows) {
  std::vector<LevelScore> scores(graph_->levels());
  run(rows, 1, false, scores);
  return scores;
}

// `total`: of the weights of all rows; the losses are divided by it.
void DrafterTrainer::run(std::span<const PackedRow> rows, double total, bool learns,
                         std::span<LevelScore> scores) {
  const size_t most = static_cast<size_t>(recipe_.batch_rows);
  for (size_t i = 0; i < rows.size(); i += most) {
    const auto some = rows.subspan(i, std::min(most, rows.size() - i));
    fill_batch(some, batch_);
    batch_.aux_layers.assign(graph_->aux_layers().begin(), graph_->aux_layers().end());
    std::vector<float> weights;
    for (const PackedRow& row : some)
      for (const float weight : row.weights)
        weights.push_back(total > 0 ? static_cast<float>(weight / total) : 0.0f);
    const Scores& target = target_.run(batch_);
    check_finite(static_cast<int64_t>(i));
    graph_->run({batch_, target_.aux_hidden(), target, weights}, learns, i == 0, scores);
  }
}

void DrafterTrainer::check_finite(int64_t first_row) const {
  for (size_t t = 0; t < batch_.rows.size(); ++t)
    if (target_.non_finite()[t] || target_.scores().has_nan[t])
      fail("step {}: the target's forward of position {} of row {} is not finite", step_ + 1,
           static_cast<int64_t>(t) % recipe_.context,
           first_row + static_cast<int64_t>(t) / recipe_.context);
}

void DrafterTrainer::copy_state(TrainingState& state) const {
  state.step = step_;
  graph_->parameters().copy_state(state);
}

void DrafterTrainer::write(const std::string& directory, ThreadPool& pool) const {
  write_checkpoint(directory, weights(), pool, {.integers = graph_->integers()});
  write_file_atomically(directory + "/config.json", json::dump(graph_->config(), 2) + "\n");
}

std::vector<int32_t> frequent_tokens(DocumentSource& documents, int64_t first, int vocab,
                                     int count) {
  std::vector<int64_t> occurrences(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < first; ++i)
    for (const int32_t token : documents.document(i).tokens)
      ++occurrences[static_cast<size_t>(token)];
  std::vector<int32_t> tokens(static_cast<size_t>(vocab));
  std::iota(tokens.begin(), tokens.end(), 0);
  std::ranges::stable_sort(tokens, std::ranges::greater(),
                           [&](int32_t token) { return occurrences[static_cast<size_t>(token)]; });
  tokens.resize(static_cast<size_t>(std::min(count, vocab)));
  std::ranges::sort(tokens);
  return tokens;
}

}  // namespace invar
