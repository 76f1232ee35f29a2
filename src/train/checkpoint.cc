#include "train/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "model/families/make_model.h"
#include "model/families/trained_source.h"
#include "weights/checkpoint_writer.h"
#include "weights/hf_directory.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPartial = ".partial";
constexpr std::string_view kStep = "step-";

// The three arrays of a state as tensors.
class StateSource : public TensorSource {
 public:
  explicit StateSource(const TrainingState& state)
      : arrays_{&state.first, &state.master, &state.second} {
    info_ = {DType::f32, {std::ssize(state.master)}};
  }
  const std::vector<std::string>& names() const override { return names_; }
  bool has(std::string_view name) const override {
    return std::find(names_.begin(), names_.end(), name) != names_.end();
  }
  const TensorInfo& info(std::string_view) const override { return info_; }
  void read(std::string_view name, int64_t first, int64_t count, DType as,
            void* out) const override {
    const auto index = std::find(names_.begin(), names_.end(), name) - names_.begin();
    convert_elements(arrays_[static_cast<size_t>(index)]->data() + first, DType::f32, count, as,
                     out);
  }
  std::string where(std::string_view name) const override {
    return fmt::format("state \"{}\"", name);
  }

 private:
  std::vector<std::string> names_{"first", "master", "second"};
  std::array<const std::vector<float>*, 3> arrays_;
  TensorInfo info_;
};

void remove_directory(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail("{}: cannot be removed: {}", path.string(), error.message());
}

void rename_directory(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail("{}: cannot be renamed to {}: {}", from.string(), to.string(), error.message());
}

void write_model_files(const fs::path& directory, const Trainer& trainer,
                       const TokenizerTexts& texts, ThreadPool& pool) {
  const DecoderSpec& spec = trainer.options().model.spec;
  const LoraOptions& lora = trainer.options().lora;
  if (lora.is_on())
    return write_peft_adapter(directory.string(), lora_modules(spec, lora), lora.peft_settings(),
                              trainer.weights(), pool);
  const auto stored = stores_otherwise(spec) ? stored_form(spec, trainer.weights()) : nullptr;
  write_checkpoint(directory.string(), stored ? *stored : trainer.weights(), pool);
  write_model_texts(directory.string(), trainer.options().model, texts.files());
}

// The steps of whole checkpoints, ascending.
std::vector<fs::path> checkpoints_in(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator i(directory, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    if (name.starts_with(kStep) && !name.ends_with(kPartial)) found.push_back(i->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

json::Value data_json(const RowPacker::State& data) {
  json::Array waiting;
  for (const auto& piece : data.waiting)
    waiting.push_back(json::Array{piece.document, piece.begin});
  return json::Object{{"next", data.next}, {"waiting", std::move(waiting)}};
}

RowPacker::State data_state(const json::Value& value) {
  RowPacker::State state;
  state.next = value.find("next")->as_integer();
  for (const json::Value& piece : value.find("waiting")->as_array())
    state.waiting.push_back(
        {piece.as_array().at(0).as_integer(), piece.as_array().at(1).as_integer()});
  return state;
}

void check_recipe(const std::string& where, const json::Value& found, const json::Value& wanted) {
  const auto check = [&](const std::string& key) {
    const json::Value *expected = wanted.find(key), *other = found.find(key);
    const auto text = [](const json::Value* v) { return v ? json::dump(*v) : "none"; };
    if (text(expected) != text(other))
      fail("{}: made by another recipe: expected {} {}, found {}", where, key,
           expected ? json::excerpt(*expected) : "none", other ? json::excerpt(*other) : "none");
  };
  for (const auto& [key, value] : wanted.as_object()) check(key);
  for (const auto& [key, value] : found.as_object()) check(key);
}

// The recipe `wanted` as it goes on from a checkpoint of `found`, after `step` steps.
json::Value going_on(const std::string& where, const json::Value& found, json::Value wanted,
                     int64_t step, bool extends) {
  json::Value compared = found;
  const json::Value* earlier = found.find("extended");
  if (earlier) wanted.set("extended", *earlier);
  const json::Value *before = found.find("steps"), *now = wanted.find("steps");
  if (before && now && before->is_integer() && now->is_integer() &&
      before->as_integer() < now->as_integer()) {
    const json::Value* last = wanted.find("final_rate");
    const bool falls = !last || last->as_number() != 1;
    if (falls && !extends)
      fail_usage(
          "{}: the rate of this run falls along {} steps: expected as many, or --extend to go on "
          "along more, found {}",
          where, before->as_integer(), now->as_integer());
    if (falls) {
      json::Array all = earlier ? earlier->as_array() : json::Array{};
      all.push_back(json::Array{step, before->as_integer()});
      wanted.set("extended", all);
      compared.set("extended", std::move(all));
    }
    compared.set("steps", now->as_integer());
  }
  check_recipe(where, compared, wanted);
  return wanted;
}

void expect_array(const TensorSource& source, const char* name, int64_t size) {
  const TensorInfo expected{DType::f32, {size}};
  if (!source.has(name) || source.info(name) != expected)
    fail("{}: expected {} numbers of f32", source.where(name), size);
}

}  // namespace

TokenizerTexts read_tokenizer_texts(const std::string& model) {
  auto texts = model_texts(model);
  if (!texts.contains("tokenizer.json"))
    fail("{}: expected a model with a tokenizer.json, found none", model);
  return {texts["tokenizer.json"],
          texts["tokenizer_config.json"],
          texts["special_tokens_map.json"],
          {}};
}

int32_t id_of_special(const Tokenizer& tokenizer, const char* name) {
  const auto id = tokenizer.id_of(name);
  if (!id) fail("tokenizer: expected a token {}, found none", name);
  return *id;
}

void replace_directory(const std::string& directory,
                       const std::function<void(const std::string&)>& write_files) {
  const fs::path partial = directory + kPartial;
  remove_directory(partial);
  write_files(partial.string());
  remove_directory(directory);
  rename_directory(partial, directory);
}

void write_model(const std::string& directory, const Trainer& trainer, const TokenizerTexts& texts,
                 ThreadPool& pool) {
  replace_directory(directory, [&](const std::string& partial) {
    write_model_files(partial, trainer, texts, pool);
  });
}

namespace {

struct Checkpoint {
  int64_t step;
  const RowPacker::State& data;
  const json::Value& recipe;
  const TensorSource& arrays;
};

void save(const std::string& directory, const Checkpoint& checkpoint,
          const std::function<void(const std::string&)>& write_files, ThreadPool& pool) {
  const int64_t step = checkpoint.step;
  const fs::path whole = fs::path(directory) / fmt::format("{}{:06}", kStep, step);
  if (fs::exists(whole)) return;  // the same bits
  const fs::path partial = whole.string() + kPartial;
  remove_directory(partial);
  write_files(partial.string());
  write_checkpoint((partial / "state").string(), checkpoint.arrays, pool);
  const json::Value training = json::Object{
      {"step", step}, {"data", data_json(checkpoint.data)}, {"recipe", checkpoint.recipe}};
  write_file_atomically((partial / "training.json").string(), json::dump(training, 2) + "\n");
  rename_directory(partial, whole);
  for (const fs::path& old : checkpoints_in(directory))
    if (old != whole) remove_directory(old);
}

}  // namespace

void save_checkpoint(const std::string& directory, const RunState& state,
                     const std::function<void(const std::string&)>& write_files, ThreadPool& pool) {
  save(directory, {state.training.step, state.data, state.recipe, StateSource(state.training)},
       write_files, pool);
}

void save_checkpoint(const std::string& directory, const Trainer& trainer,
                     const RowPacker::State& data, const json::Value& recipe,
                     const TokenizerTexts& texts, ThreadPool& pool) {
  save(
      directory, {trainer.steps_done(), data, recipe, trainer.state()},
      [&](const std::string& partial) { write_model_files(partial, trainer, texts, pool); }, pool);
}

std::optional<SavedRun> find_saved_run(const std::string& directory, const json::Value& recipe,
                                       int64_t state_size, bool extends) {
  const std::vector<fs::path> found = checkpoints_in(directory);
  if (found.empty()) return {};
  const std::string where = (found.back() / "training.json").string();
  const json::Value training = json::parse_file(where);
  for (const char* key : {"step", "data", "recipe"})
    if (!training.find(key)) fail("{}: expected \"{}\", found no such key", where, key);
  const int64_t step = training.find("step")->as_integer();
  SavedRun run{.step = step,
               .recipe = going_on(where, *training.find("recipe"), recipe, step, extends),
               .data = data_state(*training.find("data")),
               .arrays = open_checkpoint((found.back() / "state").string())};
  for (const char* name : {"master", "first", "second"})
    expect_array(*run.arrays, name, state_size);
  return run;
}

std::optional<RunState> load_checkpoint(const std::string& directory, const json::Value& recipe,
                                        int64_t state_size, bool extends) {
  auto run = find_saved_run(directory, recipe, state_size, extends);
  if (!run) return {};
  RunState state{.training = {.step = run->step},
                 .data = std::move(run->data),
                 .recipe = std::move(run->recipe)};
  const auto read = [&](const char* name, std::vector<float>& array) {
    array.resize(static_cast<size_t>(state_size));
    run->arrays->read(name, 0, state_size, DType::f32, array.data());
  };
  read("master", state.training.master);
  read("first", state.training.first);
  read("second", state.training.second);
  return state;
}

}  // namespace invar
