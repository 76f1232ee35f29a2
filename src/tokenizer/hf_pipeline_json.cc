#include "tokenizer/hf_pipeline_json.h"

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace invar::tokenizer {

namespace {

constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// No replacement may grow text without bound.
constexpr size_t kMaxReplacement = 64;

bool flag(const JsonField& field, std::string_view key, bool fallback) {
  const auto member = field.find(key);
  return member ? member->boolean() : fallback;
}

std::string short_string(const JsonField& field) {
  const std::string& text = field.string();
  if (text.size() > kMaxReplacement)
    field.refuse(fmt::format("expected at most {} bytes, found {}", kMaxReplacement, text.size()));
  return text;
}

Replace read_replace(const JsonField& field) {
  field.allow_only({"type", "pattern", "content"});
  const JsonField pattern = field.at("pattern");
  pattern.allow_only({"String"});
  Replace replace{short_string(pattern.at("String")), short_string(field.at("content"))};
  if (replace.from.empty()) pattern.refuse("expected at least one byte, found none");
  return replace;
}

// Each goes over all of every text.
constexpr size_t kMaxNormalizers = 64;

void add_normalizer(const JsonField& field, std::vector<NormalizerStep>& steps) {
  if (steps.size() >= kMaxNormalizers)
    field.refuse(fmt::format("expected at most {} normalizers, found more", kMaxNormalizers));
  const std::string& type = field.at("type").string();
  if (type == "Sequence") {
    field.allow_only({"type", "normalizers"});
    const JsonField list = field.at("normalizers");
    for (size_t i = 0; i < list.array().size(); ++i) add_normalizer(list.element(i), steps);
  } else if (type == "Prepend") {
    field.allow_only({"type", "prepend"});
    steps.push_back(Prepend{short_string(field.at("prepend"))});
  } else if (type == "Replace") {
    steps.push_back(read_replace(field));
  } else {
    field.allow_only({"type"});
    if (type == "NFC") {
      steps.push_back(UnicodeForm::kNfc);
    } else if (type == "NFD") {
      steps.push_back(UnicodeForm::kNfd);
    } else if (type == "NFKC") {
      steps.push_back(UnicodeForm::kNfkc);
    } else if (type == "NFKD") {
      steps.push_back(UnicodeForm::kNfkd);
    } else {
      field.refuse(fmt::format("a normalizer of type \"{}\" is not supported", type));
    }
  }
}

SplitBehavior read_behavior(const JsonField& field) {
  const std::string& name = field.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  field.refuse(fmt::format("\"{}\" is not supported", name));
}

Split read_split(const JsonField& field) {
  field.allow_only({"type", "pattern", "behavior", "invert"});
  const JsonField pattern = field.at("pattern");
  pattern.allow_only({"Regex", "String"});
  const SplitBehavior behavior = read_behavior(field.at("behavior"));
  const bool invert = field.at("invert").boolean();
  if (const auto regex = pattern.find("Regex"))
    return {Regex(regex->string(), regex->where()), behavior, invert};
  const JsonField text = pattern.at("String");
  if (text.string().empty()) text.refuse("expected at least one byte, found none");
  return {Regex::literal(text.string()), behavior, invert};
}

Metaspace read_metaspace(const JsonField& field) {
  field.allow_only(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  Metaspace metaspace;
  const JsonField replacement = field.at("replacement");
  metaspace.mark = replacement.string();
  if (metaspace.mark.empty() || utf8::length(metaspace.mark[0]) != metaspace.mark.size())
    replacement.refuse(fmt::format("expected one character, found \"{}\"", metaspace.mark));
  const bool add_prefix = flag(field, "add_prefix_space", true);
  metaspace.prepend = add_prefix ? Metaspace::Prepend::kAlways : Metaspace::Prepend::kNever;
  if (const auto scheme = field.find("prepend_scheme")) {
    if (scheme->string() == "always") {
      metaspace.prepend = Metaspace::Prepend::kAlways;
    } else if (scheme->string() == "first") {
      metaspace.prepend = Metaspace::Prepend::kFirst;
    } else if (scheme->string() == "never") {
      metaspace.prepend = Metaspace::Prepend::kNever;
    } else {
      scheme->refuse(fmt::format("\"{}\" is not supported", scheme->string()));
    }
    if (!add_prefix && metaspace.prepend != Metaspace::Prepend::kNever)
      scheme->refuse("it contradicts \"add_prefix_space\"");
  }
  return metaspace;
}

// ASCII's symbols count as punctuation too.
constexpr const char* kPunctuation = R"([!-/:-@\[-`{-~\p{P}])";

void add_pre_tokenizer(const JsonField& field, PreTokenizerRules& rules) {
  const std::string& type = field.at("type").string();
  auto& steps = rules.steps;
  if (rules.byte_level && type != "Sequence") {
    if (type != "Split" && type != "Digits" && type != "Punctuation")
      field.refuse(fmt::format("a pre-tokenizer ({}) after ByteLevel is not supported", type));
    if (!rules.spelled) steps.push_back(SpellBytes{});
    rules.spelled = true;
  }
  if (type == "Sequence") {
    field.allow_only({"type", "pretokenizers"});
    const JsonField list = field.at("pretokenizers");
    for (size_t i = 0; i < list.array().size(); ++i) add_pre_tokenizer(list.element(i), rules);
  } else if (type == "Split") {
    steps.push_back(read_split(field));
  } else if (type == "Digits") {
    field.allow_only({"type", "individual_digits"});
    steps.push_back(Split{Regex("\\p{N}", field.where()), field.at("individual_digits").boolean()
                                                              ? SplitBehavior::kIsolated
                                                              : SplitBehavior::kContiguous});
  } else if (type == "Punctuation") {
    field.allow_only({"type", "behavior"});
    const auto behavior = field.find("behavior");
    steps.push_back(Split{Regex(kPunctuation, field.where()),
                          behavior ? read_behavior(*behavior) : SplitBehavior::kIsolated});
  } else if (type == "ByteLevel") {
    field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (field.at("add_prefix_space").boolean()) steps.push_back(PrefixSpace{});
    if (flag(field, "use_regex", true))
      steps.push_back(Split{Regex(kGpt2Pattern, field.where()), SplitBehavior::kIsolated});
    rules.byte_level = true;
  } else if (type == "Metaspace") {
    const Metaspace metaspace = read_metaspace(field);
    steps.push_back(metaspace);
    if (flag(field, "split", true))
      steps.push_back(Split{Regex::literal(metaspace.mark), SplitBehavior::kMergedWithNext});
  } else {
    field.refuse(fmt::format("a pre-tokenizer of type \"{}\" is not supported", type));
  }
}

// The stages that are read are those that work on single tokens, then Fuse, then Strip.
struct DecoderReader {
  DecoderRules rules;
  bool fused = false;

  void add(const JsonField& field) {
    const std::string& type = field.at("type").string();
    if (type == "Sequence") {
      field.allow_only({"type", "decoders"});
      const JsonField list = field.at("decoders");
      for (size_t i = 0; i < list.array().size(); ++i) add(list.element(i));
      return;
    }
    const bool in_order = type == "Strip"     ? fused && rules.leading_spaces == 0
                          : type == "Fuse"    ? !fused
                          : type == "Replace" ? !fused && !rules.byte_fallback
                                              : !fused;
    if (!in_order || rules.byte_level || rules.bare_first_token)
      field.refuse(fmt::format("the decoder stage {} is not supported at this place", type));
    if (type == "ByteLevel") {
      field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      rules.byte_level = true;
    } else if (type == "Replace") {
      rules.replace.push_back(read_replace(field));
    } else if (type == "ByteFallback") {
      field.allow_only({"type"});
      rules.byte_fallback = true;
    } else if (type == "Fuse") {
      field.allow_only({"type"});
      fused = true;
    } else if (type == "Strip") {
      field.allow_only({"type", "content", "start", "stop"});
      if (field.at("content").string() != " ") field.at("content").refuse("expected one space");
      field.at("stop").integer(0, 0);
      rules.leading_spaces = static_cast<int>(field.at("start").integer(0, 1 << 20));
    } else if (type == "Metaspace") {
      const Metaspace metaspace = read_metaspace(field);
      rules.replace.push_back({metaspace.mark, " "});
      rules.bare_first_token = metaspace.prepend != Metaspace::Prepend::kNever;
    } else {
      field.refuse(fmt::format("a decoder of type \"{}\" is not supported", type));
    }
  }
};

}  // namespace

std::vector<NormalizerStep> read_normalizer(const JsonField& field) {
  std::vector<NormalizerStep> steps;
  add_normalizer(field, steps);
  return steps;
}

PreTokenizerRules read_pre_tokenizer(const JsonField& field) {
  PreTokenizerRules rules;
  add_pre_tokenizer(field, rules);
  if (rules.spelled) rules.steps.push_back(ReadSpelling{});
  return rules;
}

DecoderRules read_decoder(const JsonField& field) {
  DecoderReader reader;
  reader.add(field);
  return reader.rules;
}

}  // namespace invar::tokenizer
