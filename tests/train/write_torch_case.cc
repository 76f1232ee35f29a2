// A few steps of tiny models as JSON, for torch_test.py: the rows, and the state before and after
// every step. Usage: write_torch_case > case.json
#include <cstdio>
#include <random>

#include "base/json.h"
#include "train/trainer.h"
#include "training_case.h"

namespace invar {
namespace {

constexpr int kSteps = 4;

json::Array numbers(std::span<const float> values) {
  json::Array list;
  for (const float v : values) list.push_back(double{v});
  return list;
}

std::vector<PackedRow> random_rows(const TrainerOptions& options, std::mt19937& random) {
  std::vector<PackedRow> rows(static_cast<size_t>(options.rows));
  for (PackedRow& row : rows) {
    row.begins = {0, 1 + static_cast<int32_t>(random() % 30)};
    for (int i = 0; i < options.context; ++i) {
      row.tokens.push_back(static_cast<int32_t>(random() % options.model.spec.vocab));
      row.targets.push_back(static_cast<int32_t>(random() % options.model.spec.vocab));
      row.weights.push_back(random() % 4 ? 1.0f : 0.0f);
    }
  }
  return rows;
}

json::Value rows_json(const std::vector<PackedRow>& rows) {
  json::Array list;
  for (const PackedRow& row : rows)
    list.push_back(json::Object{{"tokens", json::Array(row.tokens.begin(), row.tokens.end())},
                                {"targets", json::Array(row.targets.begin(), row.targets.end())},
                                {"weights", numbers(row.weights)},
                                {"begins", json::Array(row.begins.begin(), row.begins.end())}});
  return list;
}

json::Value state_json(const Trainer& trainer) {
  TrainingState state;
  trainer.copy_state(state);
  json::Value tensors = json::Object{};
  for (const ParameterLayout::Slot& slot : trainer.layout().slots()) {
    const auto part = [&](const std::vector<float>& all) {
      return numbers({&all[static_cast<size_t>(slot.offset)], static_cast<size_t>(slot.count)});
    };
    const auto& shape = slot.tensor.shape;
    tensors.set(slot.tensor.name, json::Object{{"shape", json::Array(shape.begin(), shape.end())},
                                               {"master", part(state.master)},
                                               {"first", part(state.first)}});
  }
  return tensors;
}

json::Value steps_of(const TinyModel& model) {
  TrainerOptions options;
  options.model.spec = model.spec;
  options.context = 32;
  options.rows = 4;
  options.groups = 2;
  options.threads = 1;
  options.optimizer = {.rate = 1e-2, .warmup = 2, .steps = 20, .clip = 0};
  Trainer trainer(options, 1);
  std::mt19937 random(7);
  json::Array states{state_json(trainer)}, rows, rates;
  for (int i = 0; i < kSteps; ++i) {
    const auto packed = random_rows(options, random);
    rows.push_back(rows_json(packed));
    rates.push_back(trainer.step(packed).rate);
    states.push_back(state_json(trainer));
  }
  const OptimizerOptions& o = options.optimizer;
  return json::Object{{"config", config_json(options.model)},
                      {"qk_norm", model.spec.qk_norm},
                      {"beta1", double{o.beta1}},
                      {"beta2", double{o.beta2}},
                      {"eps", double{o.eps}},
                      {"decay", double{o.decay}},
                      {"rates", std::move(rates)},
                      {"rows", std::move(rows)},
                      {"states", std::move(states)}};
}

}  // namespace
}  // namespace invar

int main() {
  using namespace invar;
  json::Value cases = json::Object{};
  for (const TinyModel& model : tiny_models())
    if (model.spec.family != "mistral" && model.spec.mtp_layers == 0 &&
        model.spec.layer(0).attention.rope->scaling == RopeSpec::Scaling::none)
      cases.set(model.name, steps_of(model));
  std::puts(json::dump(cases).c_str());
}
