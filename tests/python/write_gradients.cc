// Tiny models as directories, each with a batch and the trainer's gradients of it, for
// torch_test.py. Usage: write_gradients DIRECTORY
#include <filesystem>
#include <fstream>

#include "../train/training_case.h"
#include "base/json.h"
#include "model/families/families.h"
#include "weights/checkpoint_writer.h"

namespace invar {
namespace {

void write_bytes(const std::string& file, const void* data, size_t bytes) {
  std::ofstream(file, std::ios::binary)
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

json::Value batch_json(const std::vector<Example>& examples) {
  json::Array list;
  for (const Example& example : examples) {
    json::Array weights;
    for (const double weight : example.weights) weights.emplace_back(weight);
    list.push_back(
        json::Object{{"tokens", json::Array(example.tokens.begin(), example.tokens.end())},
                     {"targets", json::Array(example.targets.begin(), example.targets.end())},
                     {"weights", std::move(weights)}});
  }
  return list;
}

// Two batches, one after the other: chains go on.
void write_case(const TinyModel& model, const std::string& directory) {
  std::filesystem::create_directories(directory);
  TrainingCase training(model.spec, random_weights(ParameterLayout(model.spec), 3), 96, "auto");
  const std::vector<bf16_t> weights = random_weights(training.layout(), 3);
  ThreadPool pool(1);
  write_checkpoint(directory, ParameterSource(training.layout(), weights.data()), pool);
  std::ofstream(directory + "/config.json") << json::dump(config_json({.spec = model.spec}));
  json::Array batches;
  for (const uint32_t seed : {5, 6}) {
    const auto examples = random_examples(model.spec, {33, 20, 11}, seed);
    batches.push_back(batch_json(examples));
    training.run(examples);
    const std::vector<float> total = training.total();
    for (const ParameterLayout::Slot& slot : training.layout().slots())
      write_bytes(directory + "/" + slot.tensor.name + "." + std::to_string(seed - 4),
                  &total[static_cast<size_t>(slot.offset)], slot.count * sizeof(float));
  }
  std::ofstream(directory + "/batches.json") << json::dump(batches);
}

}  // namespace
}  // namespace invar

int main(int, char** arguments) {
  for (invar::TinyModel model : invar::tiny_models()) {
    if (model.spec.mtp_layers > 0) continue;
    // config.json has one window for all layers.
    for (auto& layer : model.spec.layer_specs)
      layer.attention()->window = model.spec.layer_specs[0].attention()->window;
    invar::write_case(model, std::string(arguments[1]) + "/" + model.name);
  }
}
