#include "session/open.h"

#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include "base/input_file.h"
#include "model/families/presets.h"
#include "model/families/said_sampling.h"
#include "session/sampling_defaults.h"
#include "tokenizer/make_tokenizer.h"
#include "weights/ends_of_turns.h"
#include "weights/gguf.h"
#include "weights/hf_directory.h"

namespace invar {

namespace fs = std::filesystem;

namespace {

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool has_tokenizer(const std::string& directory) {
  return is_there(directory + "/tokenizer.json") || is_there(directory + "/tokenizer.model") ||
         is_there(directory + "/tekken.json");
}

// Random weights of a preset, or of a directory with nothing but a config.json, have a made
// tokenizer.
bool has_tokenizer_files(const ModelOptions& o) {
  return o.load_format == "auto" ||
         (!is_preset(o.model) && (is_gguf(o.model) || has_tokenizer(o.model)));
}

TokenizerTexts made_tokenizer_texts(const ModelOptions& o) {
  return make_tokenizer(read_model_config(o).spec.vocab, 1).texts;
}

// Where the model `name` that Invar brings along, "models/...", may be.
std::vector<std::string> bundled_places(const std::string& name) {
  if (const char* home = std::getenv("INVAR_HOME")) return {fs::path(home) / name};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return {};
  // build/release/invar of a repository; bin/invar of an installation
  return {(program / "../.." / name).lexically_normal(),
          (program / "../share/invar" / name).lexically_normal()};
}

// The first of these places that has a model, or nothing.
std::string bundled(const std::string& name) {
  std::error_code ignored;
  for (const std::string& place : bundled_places(name))
    if (fs::exists(fs::path(place) / "config.json", ignored)) return place;
  return {};
}

}  // namespace

Tokenizer open_tokenizer(const ModelOptions& o) {
  if (has_tokenizer_files(o) && is_gguf(o.model)) {
    auto texts = model_texts(o.model);
    return Tokenizer::from_texts({.tokenizer_json = texts["tokenizer.json"],
                                  .tokenizer_config_json = texts["tokenizer_config.json"],
                                  .special_tokens_map_json = {},
                                  .sentencepiece_model = texts["tokenizer.model"]},
                                 o.model);
  }
  if (has_tokenizer_files(o)) {
    open_hf_directory(o.model);  // what is no model says so, not that it has no tokenizer
    // Weights without one answer token ids.
    if (!has_tokenizer(o.model)) return Tokenizer::none(read_model_config(o).spec.vocab, o.model);
    return Tokenizer::load(o.model);
  }
  return Tokenizer::from_texts(made_tokenizer_texts(o), "made tokenizer");
}

std::future<Tokenizer> open_tokenizer_beside(const ModelOptions& options) {
  return std::async(std::launch::async, [options] { return open_tokenizer(options); });
}

ChatTemplate open_chat_template(const ModelOptions& o, const std::string& file) {
  const bool has_files = has_tokenizer_files(o);
  if (file.empty() && has_files && !is_gguf(o.model)) return ChatTemplate::load(o.model);
  ChatTemplateTexts texts;
  texts.tokenizer_config_json = has_files ? model_texts(o.model)["tokenizer_config.json"]
                                          : made_tokenizer_texts(o).tokenizer_config_json;
  if (!file.empty()) {
    texts.chat_template_jinja = read_whole_file(file);
    texts.jinja_name = file;
  }
  return ChatTemplate::from_texts(texts, o.model);
}

SamplingParams open_sampling_defaults(const ModelOptions& options) {
  return find_sampling_defaults(options).params;
}

json::Value defaults_json(const SamplingParams& defaults) {
  json::Value all = json::Object{};
  for_each_field<&FieldFacts::of_model>(
      defaults, [&](const auto& field, const auto& value) { all.set(field.name, value); });
  return all;
}

SamplingDefaults find_sampling_defaults(const ModelOptions& o) {
  if (o.load_format != "auto") return {{}, "none"};
  const SaidSampling said =
      said_sampling(open_hf_directory(o.model), read_model_config(o).spec.family);
  SamplingParams params;
  for_each_field<&FieldFacts::of_model>(params, [&](const auto& field, auto& value) {
    const json::Value* found = said.config.find(field.name);
    if (!found) return;
    if constexpr (std::is_same_v<decltype(value), double&>) {
      if (found->is_number()) value = found->as_number();
    } else if (const auto integer = found->to_integer()) {
      value = static_cast<int32_t>(*integer);
    }
  });
  return {params, said.from};
}

namespace {

// The config.json of a model of embeddings says how they may be cut, as vLLM reads it.
void read_vector_sizes(const ModelOptions& model, NumberForm& form) {
  const std::string path = model.model + "/config.json";
  if (model.load_format != "auto" || !is_there(path)) return;
  const json::Value config = json::parse_file(path);
  const json::Value* cuts = config.find("is_matryoshka");
  const json::Value* sizes = config.find("matryoshka_dimensions");
  form.cuts = cuts && *cuts == json::Value(true);
  if (!sizes || !sizes->is_array()) return;
  for (const json::Value& size : sizes->as_array())
    if (const auto found = size.to_integer()) form.sizes.push_back(static_cast<int32_t>(*found));
  form.cuts |= !form.sizes.empty();
}

}  // namespace

NumberForm open_number_form(const ModelOptions& options) {
  const ModelConfig config = read_model_config(options);
  NumberForm form{.has_head = config.head == Head::tokens,
                  .normalizes = config.pooling.is_normalized};
  // A model that makes embeddings is compared by the cosine.
  if (config.head == Head::classes)
    form.relevance = Relevance::cross;
  else if (config.head == Head::none || config.pooling != Pooling())
    form.relevance = Relevance::cosine;
  read_vector_sizes(options, form);
  return form;
}

std::vector<int32_t> end_tokens(const Model& model, const Tokenizer& tokenizer) {
  const auto& configured = model.config().eos_ids;
  std::set<int32_t> ids(configured.begin(), configured.end());
  const auto add = [&](std::optional<int32_t> id) {
    if (id && tokenizer.is_special(*id) && *id < model.spec().vocab) ids.insert(*id);
  };
  if (model.options().load_format == "auto") {  // random weights end nothing by chance
    add(tokenizer.eos_id());
    for (const std::string_view token : kEndsOfTurns)
      if (ends_turn(token, tokenizer.id_of("<|return|>").has_value())) add(tokenizer.id_of(token));
  }
  return {ids.begin(), ids.end()};
}

void add_end_tokens(SamplingParams& params, const Model& model, const Tokenizer& tokenizer) {
  if (params.ignore_eos) return;
  const std::vector<int32_t> ids = end_tokens(model, tokenizer);
  std::vector<int32_t>& stops = params.stop_token_ids.edit();
  stops.insert(stops.end(), ids.begin(), ids.end());
}

std::string bundled_model() {
  constexpr const char* kName = "models/story";
  std::string found = bundled(kName);
  if (found.empty())
    fail_usage(
        "expected the bundled model in {}, found none: name a MODEL, set INVAR_HOME to the "
        "directory "
        "of models/, or ask for random weights with --load-format dummy:1",
        fmt::join(bundled_places(kName), " or "));
  return found;
}

std::string found_drafter(const std::string& name) {
  std::error_code ignored;
  if (!name.starts_with("models/") || fs::exists(name, ignored)) return name;
  const std::string found = bundled(name);
  return found.empty() ? name : found;
}

}  // namespace invar
