// Rotations in config.json: rope_theta, rope_scaling (older) and rope_parameters (newer), of all
// layers or of those with a window and those without.
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "model/families/family.h"
#include "numerics/math.h"

namespace invar {

namespace {

using Scaling = RopeSpec::Scaling;

// The settings beside its dictionary that a rotation's reading needs.
struct RopeContext {
  const Family& family;
  const DecoderSpec& spec;
  int head_dim;  // of the layers that turn so
  double theta;
  double original_positions;  // of the configuration itself, or 0
  double rotated_share;
};

Scaling read_scaling(ConfigReader& rope, const Family& family, bool is_text_tower) {
  const std::string type = rope.text("rope_type", "");
  const std::string old_type = rope.text("type", type);
  if (!type.empty() && type != old_type)
    fail("{}: rope_type {} and type {} contradict each other", rope.where(), json::quoted(type),
         json::quoted(old_type));
  if (old_type.empty() || old_type == "default") return Scaling::none;
  if (old_type == "linear") return Scaling::linear;
  if (old_type == "llama3") return Scaling::llama3;
  const bool is_phi = family.name == "phi3";  // whose first files say su, and some say yarn
  if (old_type == "longrope" || (is_phi && (old_type == "su" || old_type == "yarn")))
    return Scaling::longrope;
  if (old_type == "yarn") return Scaling::yarn;
  if (old_type == "proportional" && family.name == "gemma4_text") return Scaling::none;
  // Three-part positions of images; of text all three are the same.
  if (old_type == "mrope" && is_text_tower) return Scaling::none;
  if (old_type == "dynamic")
    fail(
        "{}: the rope type dynamic is not implemented: a position's value would depend on the "
        "length of the text",
        rope.where());
  fail("{}: expected a rope type of default, linear, llama3, yarn or longrope, found {}",
       rope.where(), json::quoted(old_type));
}

// 1 unless frequencies are stretched: attention gets a little sharper then (YaRN, section 3.4).
double yarn_mscale(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * math::log(factor) + 1.0;
}

double original_positions(ConfigReader& rope, const RopeContext& context) {
  const double found =
      rope.number("original_max_position_embeddings", 1, kMaxPositions, context.original_positions);
  if (found == 0) fail("{}: the key \"original_max_position_embeddings\" is missing", rope.where());
  return found;
}

void read_yarn(ConfigReader& rope, const RopeContext& context, RopeSpec& spec) {
  spec.original_positions = original_positions(rope, context);
  spec.factor =
      rope.number("factor", 1e-6, 1e6, context.spec.max_positions / spec.original_positions);
  spec.beta_fast = rope.number("beta_fast", 1e-6, 1e6, 32);
  spec.beta_slow = rope.number("beta_slow", 1e-6, 1e6, 1);
  spec.truncate = rope.boolean("truncate", true);
  const double weight = rope.number("mscale", 0, 1e6, 0);
  const double other = rope.number("mscale_all_dim", 0, 1e6, 0);
  double mscale = yarn_mscale(spec.factor, 1);
  if (weight > 0 && other > 0)
    mscale = yarn_mscale(spec.factor, weight) / yarn_mscale(spec.factor, other);
  spec.attention_factor = rope.number("attention_factor", 1e-6, 1e6, mscale);
}

std::vector<double> read_factors(ConfigReader& rope, std::string_view key, size_t count) {
  const json::Value* list = rope.take(key);
  std::vector<double> factors;
  if (list && list->is_array())
    for (const json::Value& factor : list->as_array())
      if (factor.is_number() && factor.as_number() > 0) factors.push_back(factor.as_number());
  if (!list || !list->is_array() || factors.size() != count || list->as_array().size() != count)
    fail("{}: \"{}\": expected an array of {} numbers above 0, found {}", rope.where(), key, count,
         list ? json::excerpt(*list) : "nothing");
  return factors;
}

void read_longrope(ConfigReader& rope, const RopeContext& context, RopeSpec& spec) {
  spec.original_positions = original_positions(rope, context);
  const size_t pairs = static_cast<size_t>(spec.rotated ? spec.rotated : context.spec.head_dim) / 2;
  spec.short_factors = read_factors(rope, "short_factor", pairs);
  spec.long_factors = read_factors(rope, "long_factor", pairs);
  const double factor =
      rope.number("factor", 1e-6, 1e6, context.spec.max_positions / spec.original_positions);
  const double mscale =
      factor <= 1 ? 1.0 : std::sqrt(1.0 + math::log(factor) / math::log(spec.original_positions));
  spec.attention_factor = rope.number("attention_factor", 1e-6, 1e6, mscale);
  spec.is_long = context.spec.max_positions > spec.original_positions;
}

void read_llama3(ConfigReader& rope, const std::string& where, RopeSpec& spec) {
  spec.low_freq_factor = rope.number("low_freq_factor", 1e-3, 1e6);
  spec.high_freq_factor = rope.number("high_freq_factor", 1e-3, 1e6);
  spec.original_positions = rope.number("original_max_position_embeddings", 1, kMaxPositions);
  if (spec.low_freq_factor > spec.high_freq_factor)
    fail("{}: expected low_freq_factor up to high_freq_factor, found {} and {}", where,
         spec.low_freq_factor, spec.high_freq_factor);
}

int rotated_of(double share, int head_dim, const std::string& where) {
  const int rotated = static_cast<int>(head_dim * share);
  if (rotated == head_dim) return 0;
  if (rotated < 2 || rotated % 2)
    fail("{}: expected a partial_rotary_factor of an even number of a head's {} elements, found {}",
         where, head_dim, share);
  return rotated;
}

// Gemma 4: what turns has the first frequencies of the whole head.
void read_proportional(ConfigReader& rope, const RopeContext& context, const std::string& where,
                       RopeSpec& spec) {
  const double share = rope.number("partial_rotary_factor", 1e-3, 1, 1);
  const int even = static_cast<int>(std::floor(share * context.head_dim / 2)) * 2;
  if (even < 2)
    fail("{}: expected a partial_rotary_factor of at least two of a head's {} elements, found {}",
         where, context.head_dim, share);
  spec.rotated = even == context.head_dim ? 0 : even;
  spec.spans_head = spec.rotated > 0;
  check_neutral(rope, "factor", 1);
}

RopeSpec read_dictionary(const json::Value& value, const std::string& where,
                         const RopeContext& context) {
  ConfigReader rope(value, where);
  RopeSpec spec;
  spec.theta = rope.number("rope_theta", 1, 1e15, context.theta);
  if (const json::Value* type = rope.take("rope_type");
      type && *type == json::Value("proportional"))
    read_proportional(rope, context, where, spec);
  else if (context.family.has_rotated_share)
    spec.rotated = rotated_of(rope.number("partial_rotary_factor", 1e-3, 1, context.rotated_share),
                              context.head_dim, where);
  else if (context.family.name == "mistral4")
    rope.take("partial_rotary_factor");  // qk_rope_head_dim says it, too
  else
    check_neutral(rope, "partial_rotary_factor", 1);
  // Hunyuan's alpha stretches the base once and for all, whatever the length.
  const bool has_alpha = context.family.name == "hunyuan_v1_dense" && rope.take("alpha") != nullptr;
  if (has_alpha) {
    const double alpha = rope.number("alpha", 1e-6, 1e9), e = context.spec.head_dim;
    spec.theta = spec.theta * math::pow(alpha, e / (e - 2));
    for (const char* key :
         {"rope_type", "type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"})
      rope.take(key);
  } else {
    spec.scaling = read_scaling(rope, context.family, context.spec.is_text_tower);
  }
  if (spec.scaling == Scaling::linear || spec.scaling == Scaling::llama3)
    spec.factor = rope.number("factor", 1, 1e6);
  if (spec.scaling == Scaling::llama3) read_llama3(rope, where, spec);
  if (spec.scaling == Scaling::yarn) read_yarn(rope, context, spec);
  if (spec.scaling == Scaling::longrope) read_longrope(rope, context, spec);
  for (const char* key : {"original_max_position_embeddings", "max_position_embeddings"})
    rope.take(key);  // of no effect in the other types
  if (context.spec.is_text_tower || context.family.has_image_positions)
    for (const char* key : {"mrope_section", "mrope_interleaved"}) rope.take(key);
  if (context.family.name == "ministral3" || context.family.name == "mistral4")
    rope.take("llama_4_scaling_beta");
  rope.refuse_others();
  return spec;
}

bool is_by_layer_type(const json::Value& value) {
  return value.is_object() && (value.find("full_attention") || value.find("sliding_attention"));
}

struct Ropes {
  RopeSpec full, sliding;
  bool operator==(const Ropes&) const = default;
};

// A dictionary of dictionaries has one for each kind of layer.
Ropes read_kinds(const json::Value& value, const std::string& where, const RopeContext& context) {
  ConfigReader kinds(value, where);
  const AttentionSpec* first = context.spec.first<AttentionSpec>();
  const int full = first ? context.spec.head_dim_of(*first) : context.head_dim;
  const auto kind = [&](const char* name, double theta, int head_dim) {
    const json::Value* found = kinds.take(name);
    RopeContext own = context;
    own.theta = theta;
    own.head_dim = head_dim;
    return read_dictionary(found ? *found : json::Value(json::Object{}),
                           fmt::format("{}: \"{}\"", where, name), own);
  };
  const Ropes ropes{kind("full_attention", context.theta, full),
                    kind("sliding_attention", context.family.local_theta, context.head_dim)};
  kinds.refuse_others();
  return ropes;
}

Ropes read_both(ConfigReader& reader, const Family& family, const DecoderSpec& spec) {
  const bool has_theta = reader.take("rope_theta");
  RopeContext context{family,
                      spec,
                      spec.head_dim,
                      reader.number("rope_theta", 1, 1e15, family.theta),
                      reader.number("original_max_position_embeddings", 1, kMaxPositions, 0),
                      family.rotated_share};
  if (family.has_rotated_share)
    context.rotated_share = reader.number("partial_rotary_factor", 1e-3, 1, context.rotated_share);
  double local = family.local_theta;
  if (local > 0)
    local = reader.number("rope_local_base_freq", 1, 1e15,
                          family.theta == family.local_theta ? context.theta : local);
  const json::Value* older = reader.take("rope_scaling");
  const json::Value* newer = reader.take("rope_parameters");
  const json::Value none = json::Object{};
  Ropes ropes;
  ropes.full =
      read_dictionary(older ? *older : none, reader.where() + ": \"rope_scaling\"", context);
  RopeContext of_windows = context;
  of_windows.theta = local;
  ropes.sliding = local > 0
                      ? read_dictionary(none, reader.where() + ": \"rope_scaling\"", of_windows)
                      : ropes.full;
  if (!newer) return ropes;
  const std::string where = reader.where() + ": \"rope_parameters\"";
  Ropes other;
  if (local > 0 && is_by_layer_type(*newer)) {
    other = read_kinds(*newer, where, context);
  } else {
    other.full = read_dictionary(*newer, where, context);
    of_windows.theta = other.full.theta;
    other.sliding = local > 0 ? ropes.sliding : other.full;
  }
  if ((older && other.full != ropes.full) || (has_theta && other.full.theta != ropes.full.theta))
    fail("{}: \"rope_parameters\" contradicts \"{}\"", reader.where(),
         older ? "rope_scaling" : "rope_theta");
  return other;
}

json::Value scaling_json(const RopeSpec& rope) {
  const auto list = [](const std::vector<double>& factors) {
    return json::Array(factors.begin(), factors.end());
  };
  const int64_t original = static_cast<int64_t>(rope.original_positions);
  switch (rope.scaling) {
    case Scaling::none:
      return {};
    case Scaling::linear:
      return json::Object{{"factor", rope.factor}, {"rope_type", "linear"}};
    case Scaling::llama3:
      return json::Object{{"factor", rope.factor},
                          {"low_freq_factor", rope.low_freq_factor},
                          {"high_freq_factor", rope.high_freq_factor},
                          {"original_max_position_embeddings", original},
                          {"rope_type", "llama3"}};
    case Scaling::yarn:
      return json::Object{{"factor", rope.factor},
                          {"beta_fast", rope.beta_fast},
                          {"beta_slow", rope.beta_slow},
                          {"truncate", rope.truncate},
                          {"attention_factor", rope.attention_factor},
                          {"original_max_position_embeddings", original},
                          {"rope_type", "yarn"}};
    case Scaling::longrope:
      return json::Object{{"short_factor", list(rope.short_factors)},
                          {"long_factor", list(rope.long_factors)},
                          {"attention_factor", rope.attention_factor},
                          {"original_max_position_embeddings", original},
                          {"rope_type", "longrope"}};
  }
  return {};
}

}  // namespace

void read_ropes(ConfigReader& reader, const Family& family, DecoderSpec& spec) {
  const Ropes ropes = read_both(reader, family, spec);
  change_layers(spec, [&](LayerSpec& layer) {
    if (AttentionSpec* attention = layer.attention())
      attention->rope = attention->window > 0 ? ropes.sliding : ropes.full;
  });
}

void write_ropes(const DecoderSpec& spec, const Family& family, json::Value& config) {
  RopeSpec full, sliding;
  full.theta = family.theta;
  sliding.theta = family.local_theta;
  for (const LayerSpec& layer : spec.layer_specs)
    if (layer.attention() && layer.attention()->rope)
      (layer.window() > 0 && family.local_theta > 0 ? sliding : full) = *layer.attention()->rope;
  config.set("rope_theta", full.theta);
  config.set("rope_scaling", scaling_json(full));
  if (family.local_theta > 0) config.set("rope_local_base_freq", sliding.theta);
  if (family.has_rotated_share)
    config.set("partial_rotary_factor",
               full.rotated ? static_cast<double>(full.rotated) / spec.head_dim : 1.0);
}

void set_context(DecoderSpec& spec, int64_t positions) {
  change_layers(spec, [&](LayerSpec& layer) {
    if (AttentionSpec* attention = layer.attention(); attention && attention->rope)
      attention->rope->is_long = attention->rope->scaling == Scaling::longrope &&
                                 positions > attention->rope->original_positions;
  });
}

}  // namespace invar
