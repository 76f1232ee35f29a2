#include "speculative/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "speculative/method_names.h"

namespace invar {

namespace {

constexpr const char* kWhere = "speculative-config";

struct MethodName {
  DraftMethod method;
  const char* name;
};
constexpr MethodName kMethods[] = {
    {DraftMethod::ngram, "ngram"},
    {DraftMethod::suffix, "suffix"},
    {DraftMethod::lookahead, "lookahead"},
    {DraftMethod::draft_model, "draft_model"},
    {DraftMethod::early_exit, "early_exit"},
    {DraftMethod::swift, "swift"},
    {DraftMethod::mtp, "mtp"},
    {DraftMethod::medusa, "medusa"},
    {DraftMethod::eagle, "eagle"},
    {DraftMethod::eagle3, "eagle3"},
};

// Keys of vLLM that Invar knows and does not take, each with the reason.
struct RefusedKey {
  const char* name;
  const char* reason;
};
constexpr const char* kLossy =
    "a draft is accepted where it is the target's own sample, so that answers stay as they are";
constexpr const char* kOwnType = "a drafter's weights and its cache have one type";
constexpr const char* kOneProgram = "there is one way to compute, and it is chosen elsewhere";
constexpr const char* kDirectory = "\"model\" is a directory; nothing is downloaded";
constexpr RefusedKey kRefused[] = {
    {"acceptance_method", kLossy},
    {"draft_token_acceptance_method", kLossy},
    {"typical_acceptance_sampler_posterior_threshold", kLossy},
    {"typical_acceptance_sampler_posterior_alpha", kLossy},
    {"posterior_threshold", kLossy},
    {"posterior_alpha", kLossy},
    {"rejection_sample_method", "it is called \"acceptance\", \"coupled\" or \"rejection\""},
    {"synthetic_acceptance_rates", kLossy},
    {"synthetic_acceptance_length", kLossy},
    {"draft_sample_method", "drafts are sampled with the target's own noise"},
    {"quantization", kOwnType},
    {"kv_cache_dtype", kOwnType},
    {"moe_backend", kOneProgram},
    {"attention_backend", kOneProgram},
    {"enforce_eager", kOneProgram},
    {"disable_padded_drafter_batch", kOneProgram},
    {"use_local_argmax_reduction", kOneProgram},
    {"draft_load_config", kDirectory},
    {"revision", kDirectory},
    {"code_revision", kDirectory},
    {"parallel_drafting", "drafters that were trained for it are not supported"},
    {"use_heterogeneous_vocab", "a drafter has the target's vocabulary"},
    {"draft_tensor_parallel_size", "a drafter runs as the target does"},
    {"max_model_len", "a drafter that cannot go on makes no draft, and the answer goes on"},
    {"num_speculative_tokens_per_batch_size", "\"adaptive\" finds the number out"},
    {"enable_adaptive_verification", "it is called \"adaptive\""},
    {"suffix_decoding_max_tree_depth", "it is called \"num_speculative_tokens\""},
    {"suffix_decoding_max_cached_requests", "it is called \"suffix_decoding_corpus_tokens\""},
    {"suffix_decoding_min_token_prob", "the longest match decides, not a probability"},
};

DraftMethod method_named(std::string_view name) {
  for (const MethodName& m : kMethods)
    if (name == m.name) return m.method;
  fail_usage("{}: expected a \"method\" of {}, found {}", kWhere, speculation_method_names(),
             json::quoted(name));
}

json::Value parse_json(std::string_view text, const std::string& where) {
  try {
    return json::parse(text, where);
  } catch (const Error& error) {  // what a user wrote on the command line
    throw UsageError(error.what());
  }
}

// Reads the members of the object and remembers which were asked for.
class Reader {
 public:
  explicit Reader(const json::Value& object) : object_(object) {
    if (!object.is_object())
      fail_usage("{}: expected a JSON object, found {}", kWhere, object.type_name());
    for (const RefusedKey& key : kRefused)
      if (object.find(key.name))
        fail_usage("{}: the key \"{}\" is not supported: {}", kWhere, key.name, key.reason);
  }

  const json::Value* take(const char* key) {
    known_.insert(key);
    const json::Value* value = object_.find(key);
    return value && !value->is_null() ? value : nullptr;
  }
  template <typename T>
  void integer(const char* key, T& out, int64_t low, int64_t high) {
    const json::Value* value = take(key);
    if (!value) return;
    const auto found = value->to_integer();
    if (!found || *found < low || *found > high)
      fail_usage("{}: \"{}\": expected an integer from {} to {}, found {}", kWhere, key, low, high,
                 json::excerpt(*value));
    out = static_cast<T>(*found);
  }
  void number(const char* key, double& out, double above, double high) {
    const json::Value* value = take(key);
    if (!value) return;
    if (!value->is_number() || !(value->as_number() > above && value->as_number() <= high))
      fail_usage("{}: \"{}\": expected a number above {} and at most {}, found {}", kWhere, key,
                 above, high, json::excerpt(*value));
    out = value->as_number();
  }
  void share(const char* key, double& out) {
    const json::Value* value = take(key);
    if (!value) return;
    if (!value->is_number() || !(value->as_number() >= 0 && value->as_number() <= 1))
      fail_usage("{}: \"{}\": expected a number from 0 to 1, found {}", kWhere, key,
                 json::excerpt(*value));
    out = value->as_number();
  }
  void text(const char* key, std::string& out) {
    const json::Value* value = take(key);
    if (!value) return;
    if (!value->is_string())
      fail_usage("{}: \"{}\": expected a string, found {}", kWhere, key, json::excerpt(*value));
    out = value->as_string();
  }
  void boolean(const char* key, bool& out) {
    const json::Value* value = take(key);
    if (!value) return;
    if (!value->is_bool())
      fail_usage("{}: \"{}\": expected true or false, found {}", kWhere, key,
                 json::excerpt(*value));
    out = value->as_bool();
  }

  // A field that was not asked for is of another method, or a mistake.
  void refuse_others(DraftMethod method) const {
    for (const auto& [key, value] : object_.as_object())
      if (!known_.contains(key))
        fail_usage("{}: the key {} is not known for the method {}; known are {}", kWhere,
                   json::quoted(key), name_of(method), fmt::join(known_, ", "));
  }

 private:
  const json::Value& object_;
  std::set<std::string, std::less<>> known_;
};

// A list of paths as JSON, [[0], [0, 0]], or as vLLM's string, "[(0,), (0, 0)]".
TreeShape parse_tree(const json::Value& value) {
  json::Value list = value;
  if (value.is_string()) {
    std::string text = value.as_string();
    for (size_t i = 0; i < text.size(); ++i) {  // Python's tuples as JSON's arrays
      if (text[i] == '(') text[i] = '[';
      if (text[i] != ')') continue;
      text[i] = ']';
      size_t last = i;
      while (last > 0 && text[last - 1] == ' ') --last;
      if (last > 0 && text[last - 1] == ',') text[last - 1] = ' ';
    }
    list = parse_json(text, fmt::format("{}: \"speculative_token_tree\"", kWhere));
  }
  std::vector<std::vector<int32_t>> paths;
  bool good = list.is_array();
  for (size_t i = 0; good && i < list.as_array().size(); ++i) {
    const json::Value& path = list.as_array()[i];
    good = path.is_array();
    if (!good) break;
    paths.emplace_back();
    for (const json::Value& rank : path.as_array()) {
      const auto found = rank.to_integer();
      good &= found && *found >= 0 && *found < kMaxDraftNodes;
      if (good) paths.back().push_back(static_cast<int32_t>(*found));
    }
  }
  if (!good)
    fail_usage(
        "{}: \"speculative_token_tree\": expected a list of paths of ranks from 0 to {}, such as "
        "[(0,), (0, 0), (1,)], found {}",
        kWhere, kMaxDraftNodes - 1, json::excerpt(value));
  return shape_of_paths(std::move(paths));
}

bool has_tree(DraftMethod method) {
  return method == DraftMethod::draft_model || method == DraftMethod::early_exit ||
         method == DraftMethod::swift || method == DraftMethod::medusa;
}

bool has_weights(DraftMethod method) {
  return method == DraftMethod::draft_model || method == DraftMethod::medusa ||
         method == DraftMethod::eagle || method == DraftMethod::eagle3;
}

// Whether the method's chains are sampled token after token.
bool samples_drafts(DraftMethod method) {
  using enum DraftMethod;
  return method == draft_model || method == early_exit || method == swift || method == mtp ||
         method == eagle || method == eagle3;
}

// One of the limits of prompt lookup alone gives the other (vLLM's rule).
void read_lookup(Reader& in, SpeculativeConfig& config) {
  const bool has_min = in.take("prompt_lookup_min"), has_max = in.take("prompt_lookup_max");
  in.integer("prompt_lookup_min", config.prompt_lookup_min, 1, 1 << 16);
  in.integer("prompt_lookup_max", config.prompt_lookup_max, 1, 1 << 16);
  if (!has_min && has_max) config.prompt_lookup_min = config.prompt_lookup_max;
  if (has_min && !has_max) config.prompt_lookup_max = config.prompt_lookup_min;
  if (config.prompt_lookup_min > config.prompt_lookup_max)
    fail_usage("{}: expected prompt_lookup_min of at most prompt_lookup_max ({}), found {}", kWhere,
               config.prompt_lookup_max, config.prompt_lookup_min);
}

// Ascending.
void read_skip_layers(Reader& in, SpeculativeConfig& config) {
  const json::Value* list = in.take("skip_layers");
  if (!list) return;
  bool good = list->is_array() && !list->as_array().empty();
  for (size_t i = 0; good && i < list->as_array().size(); ++i) {
    const auto layer = list->as_array()[i].to_integer();
    good =
        layer && *layer >= 1 && *layer < 1 << 16 && (i == 0 || *layer > config.skip_layers.back());
    if (good) config.skip_layers.push_back(static_cast<int32_t>(*layer));
  }
  if (!good)
    fail_usage("{}: \"skip_layers\": expected an ascending list of layers from 1 on, found {}",
               kWhere, json::excerpt(*list));
}

void read_acceptance(Reader& in, SpeculativeConfig& config) {
  std::string acceptance = "coupled";
  in.text("acceptance", acceptance);
  if (acceptance != "coupled" && acceptance != "rejection")
    fail_usage("{}: \"acceptance\": expected coupled or rejection, found {}", kWhere,
               json::quoted(acceptance));
  config.rejection = acceptance == "rejection";
}

void read_of_method(Reader& in, SpeculativeConfig& config) {
  using enum DraftMethod;
  if (config.method == ngram) read_lookup(in, config);
  if (config.method == suffix) {
    in.number("suffix_decoding_max_spec_factor", config.suffix_decoding_max_spec_factor, 0,
              kMaxDraftNodes);
    in.integer("suffix_decoding_corpus_tokens", config.suffix_decoding_corpus_tokens, 0,
               int64_t{1} << 30);
  }
  if (config.method == lookahead) {
    in.integer("lookahead_window", config.lookahead_window, 0, kMaxDraftNodes);
    in.integer("lookahead_ngram", config.lookahead_ngram, 2, 16);
    in.integer("lookahead_guesses", config.lookahead_guesses, 1, kMaxDraftNodes);
    if (config.num_speculative_tokens > 0)
      fail_usage(
          "{}: \"num_speculative_tokens\" is not known for the method lookahead, whose drafts have "
          "(lookahead_window + lookahead_guesses) * (lookahead_ngram - 1) tokens",
          kWhere);
  }
  if (config.method == early_exit) in.integer("exit_layer", config.exit_layer, 1, 1 << 16);
  if (samples_drafts(config.method)) in.share("draft_confidence", config.draft_confidence);
  if (config.method == swift) read_skip_layers(in, config);
  if (config.method == eagle || config.method == eagle3) {
    in.integer("eagle_topk", config.eagle_topk, 1, 16);
    in.integer("eagle_depth", config.eagle_depth, 1, 16);
    if (config.eagle_topk > 1 && config.draft_confidence > 0)
      fail_usage(
          "{}: \"draft_confidence\" is for chains, and \"eagle_topk\" above 1 chooses the surest "
          "nodes itself",
          kWhere);
    if (in.take("eagle_depth") && config.eagle_topk == 1)
      fail_usage(
          "{}: \"eagle_depth\" is of trees and needs an \"eagle_topk\" above 1; a chain has "
          "num_speculative_tokens levels",
          kWhere);
  }
  if (has_tree(config.method)) {
    if (const json::Value* tree = in.take("speculative_token_tree"))
      config.tree = parse_tree(*tree);
  }
}

SpeculativeConfig config_of(const json::Value& object) {
  Reader in(object);
  SpeculativeConfig config;
  std::string method;
  in.text("model", config.model);
  in.text("method", method);
  if (method.empty() && (config.model == "ngram" || config.model == "[ngram]")) {
    method = "ngram";  // vLLM's older spelling
    config.model.clear();
  }
  if (method.empty() && !config.model.empty()) method = "draft_model";
  config.method = method_named(method);
  if (has_weights(config.method) && config.model.empty())
    fail_usage("{}: expected a \"model\", the directory of the drafter, for the method {}", kWhere,
               method);
  if (!has_weights(config.method) && !config.model.empty())
    fail_usage("{}: the method {} has no \"model\" of its own, found {}", kWhere, method,
               json::quoted(config.model));
  in.integer("num_speculative_tokens", config.num_speculative_tokens, 1, kMaxDraftNodes);
  in.integer("disable_by_batch_size", config.disable_by_batch_size, 2, 1 << 20);
  in.boolean("adaptive", config.adaptive);
  in.number("undrafted_slowdown", config.undrafted_slowdown, 0, 1000);
  if (object.find("undrafted_slowdown") && !config.adaptive)
    fail_usage("{}: \"undrafted_slowdown\" needs \"adaptive\": true", kWhere);
  read_acceptance(in, config);
  read_of_method(in, config);
  in.refuse_others(config.method);
  if (config.num_speculative_tokens > 0 && !config.tree.empty() &&
      config.num_speculative_tokens != std::ssize(config.tree))
    fail_usage("{}: expected as many num_speculative_tokens as the tree has nodes ({}), found {}",
               kWhere, config.tree.size(), config.num_speculative_tokens);
  return config;
}

}  // namespace

std::string speculation_method_names() {
  std::vector<const char*> names;
  for (const MethodName& m : kMethods) names.push_back(m.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string_view name_of(DraftMethod method) {
  for (const MethodName& m : kMethods)
    if (m.method == method) return m.name;
  return "none";
}

SpeculativeConfig parse_speculative_config(std::string_view text) {
  return config_of(parse_json(text, kWhere));
}

SpeculativeConfig with_short_flags(std::string_view text, const std::string& method,
                                   const std::string& model, int32_t tokens) {
  json::Value object = text.empty() ? json::Value(json::Object{}) : parse_json(text, kWhere);
  const auto add = [&](const char* key, bool said, json::Value value) {
    if (!said || !object.is_object()) return;
    if (object.find(key))
      fail_usage("{}: \"{}\" is given there and by a flag of its own", kWhere, key);
    object.set(key, std::move(value));
  };
  add("method", !method.empty(), method);
  add("model", !model.empty(), model);
  add("num_speculative_tokens", tokens != 0, tokens);
  if (object.is_object() && object.as_object().empty()) return {};
  return config_of(object);
}

}  // namespace invar
