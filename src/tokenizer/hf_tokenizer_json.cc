#include "tokenizer/hf_tokenizer_json.h"

#include <unordered_map>

#include "base/error.h"
#include "base/number_of.h"
#include "tokenizer/hf_pipeline_json.h"
#include "tokenizer/sentencepiece_model.h"

namespace invar::tokenizer {

namespace {

bool flag(const JsonField& field, std::string_view key) {
  const auto member = field.find(key);
  return member && member->boolean();
}

void refuse_unless_empty(const JsonField& model, std::string_view key) {
  const auto field = model.find(key);
  if (field && !field->string().empty()) field->refuse("not supported");
}

// Several times what models have; what is below them is read within seconds.
constexpr size_t kMaxMerges = 2'000'000, kMaxAddedTokens = 131'072;
constexpr json::ParseLimits kFileLimits{.max_bytes = size_t{64} << 20, .max_values = 8'000'000};

void expect_at_most(const JsonField& field, size_t most, size_t found, const char* what) {
  if (found > most)
    field.refuse(fmt::format("expected at most {} {}, found {}", most, what, found));
}

void read_vocabulary(const JsonField& vocab, Description& description) {
  expect_at_most(vocab, static_cast<size_t>(kMaxVocabulary), vocab.object().size(), "tokens");
  auto& tokens = description.tokens;
  for (const auto& [token, value] : vocab.object()) {
    const auto refuse = [&, &token = token](std::string_view why) {
      vocab.refuse(fmt::format("the token \"{}\" {}", token, why));
    };
    const auto found = value.to_integer();
    if (!found || *found < 0 || *found >= kMaxVocabulary)
      refuse(fmt::format("needs an id from 0 to {}", kMaxVocabulary - 1));
    const auto id = static_cast<size_t>(*found);
    if (id >= tokens.size()) tokens.resize(id + 1);
    if (!tokens[id].empty()) refuse(fmt::format("has the id of \"{}\"", tokens[id]));
    tokens[id] = token;
  }
}

// "a b", or ["a", "b"] in newer files.
std::pair<std::string_view, std::string_view> read_pair(const JsonField& list, size_t i) {
  const json::Value& value = list.array()[i];
  if (value.is_string()) {
    const std::string_view text = value.as_string();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  } else if (value.is_array() && value.as_array().size() == 2) {
    const json::Array& pair = value.as_array();
    if (pair[0].is_string() && pair[1].is_string())
      return {pair[0].as_string(), pair[1].as_string()};
  }
  list.element(i).refuse("expected two tokens");
}

void read_merges(const JsonField& list, const StringTable& ids, Description& description) {
  const size_t count = list.array().size();
  expect_at_most(list, kMaxMerges, count, "merges");
  description.merges.reserve(count);
  std::string joined;
  for (size_t i = 0; i < count; ++i) {
    const json::Value& value = list.array()[i];
    if (value.is_string() && value.as_string().starts_with("#version")) continue;
    const auto [left, right] = read_pair(list, i);
    joined.assign(left).append(right);
    const auto id_of = [&](std::string_view token) {
      const int32_t id = ids.find(token);
      if (id < 0) list.element(i).refuse(fmt::format("\"{}\" is not in the vocabulary", token));
      return id;
    };
    description.merges.push_back(
        {id_of(left), id_of(right), id_of(joined), static_cast<uint32_t>(i)});
  }
}

StringTable ids_of(const std::vector<std::string>& tokens) {
  StringTable ids(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i)
    if (!tokens[i].empty()) ids.insert(tokens[i], static_cast<int32_t>(i));
  return ids;
}

void read_model(const JsonField& model, Description& description) {
  if (const auto type = model.find("type"); type && type->string() != "BPE")
    type->refuse(fmt::format("a model of type \"{}\" is not supported", type->string()));
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix",
                    "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                    "merges"});
  if (const auto dropout = model.find("dropout");
      dropout && !(dropout->value().is_number() && dropout->value().as_number() == 0))
    dropout->refuse("not supported");
  refuse_unless_empty(model, "continuing_subword_prefix");
  refuse_unless_empty(model, "end_of_word_suffix");
  description.fuse_unk = flag(model, "fuse_unk");
  description.byte_fallback = flag(model, "byte_fallback");
  description.ignore_merges = flag(model, "ignore_merges");
  read_vocabulary(model.at("vocab"), description);
  const StringTable ids = ids_of(description.tokens);
  read_merges(model.at("merges"), ids, description);
  if (const auto unk = model.find("unk_token"); unk && !unk->string().empty()) {
    description.unk_id = ids.find(unk->string());
    if (description.unk_id < 0)
      unk->refuse(fmt::format("\"{}\" is not in the vocabulary", unk->string()));
  }
}

AddedToken read_added_token(const JsonField& field, int32_t id) {
  AddedToken token;
  token.id = id;
  token.content = field.at("content").string();
  if (token.content.empty()) field.at("content").refuse("expected a token, found nothing");
  token.single_word = flag(field, "single_word");
  token.lstrip = flag(field, "lstrip");
  token.rstrip = flag(field, "rstrip");
  token.special = flag(field, "special");
  const auto normalized = field.find("normalized");
  token.normalized = normalized ? normalized->boolean() : !token.special;
  return token;
}

// All tokens by text and by id, to keep additions consistent with what is there.
class TokenSet {
 public:
  explicit TokenSet(Description& description)
      : description_(description), model_ids_(ids_of(description.tokens)) {
    for (size_t i = 0; i < description.added_tokens.size(); ++i) note(i);
  }

  int32_t id_of(std::string_view text) const {
    if (const auto found = added_ids_.find(std::string(text)); found != added_ids_.end())
      return found->second;
    return model_ids_.find(text);
  }

  // "" for an id that no token has.
  std::string_view text_of(int32_t id) const {
    if (const auto found = places_.find(id); found != places_.end())
      return description_.added_tokens[found->second].content;
    const auto& tokens = description_.tokens;
    return static_cast<size_t>(id) < tokens.size() ? std::string_view(tokens[id]) : "";
  }

  bool is_added(int32_t id) const { return places_.contains(id); }

  // Adds a token, or gives an added one new flags. `field` is where it stands.
  void add(AddedToken token, const JsonField& field) {
    const std::string_view text = text_of(token.id);
    if (!text.empty() && text != token.content)
      field.refuse(fmt::format("\"{}\" has the id {} of \"{}\"", token.content, token.id, text));
    const int32_t id = id_of(token.content);
    if (id >= 0 && id != token.id)
      field.refuse(fmt::format("\"{}\" has the ids {} and {}", token.content, id, token.id));
    if (const auto found = places_.find(token.id); found != places_.end()) {
      description_.added_tokens[found->second] = std::move(token);
      return;
    }
    description_.added_tokens.push_back(std::move(token));
    note(description_.added_tokens.size() - 1);
  }

 private:
  void note(size_t place) {
    const AddedToken& token = description_.added_tokens[place];
    added_ids_[token.content] = token.id;
    places_[token.id] = place;
  }

  Description& description_;
  StringTable model_ids_;
  std::unordered_map<std::string, int32_t> added_ids_;
  std::unordered_map<int32_t, size_t> places_;  // in description_.added_tokens
};

// Before and after each text.
constexpr size_t kMaxPieces = 1024;

// "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]
void read_template(const JsonField& field, const TokenSet& tokens, Description& description) {
  field.allow_only({"type", "single", "pair", "special_tokens"});
  const JsonField parts = field.at("single");
  if (parts.array().size() > kMaxPieces)
    parts.refuse(
        fmt::format("expected at most {} pieces, found {}", kMaxPieces, parts.array().size()));
  std::vector<int32_t> before, after;
  int sequences = 0;
  for (size_t i = 0; i < parts.array().size(); ++i) {
    const JsonField part = parts.element(i);
    part.allow_only({"SpecialToken", "Sequence"});
    const auto special = part.find("SpecialToken");
    if (!special) {
      const JsonField id = part.at("Sequence").at("id");
      if (id.string() != "A" || ++sequences > 1) id.refuse("expected \"A\", once");
      continue;
    }
    const JsonField ids = field.at("special_tokens").at(special->at("id").string()).at("ids");
    for (size_t j = 0; j < ids.array().size(); ++j) {
      const auto id = static_cast<int32_t>(ids.element(j).integer(0, kMaxVocabulary - 1));
      if (tokens.text_of(id).empty())
        ids.element(j).refuse(fmt::format("no token has the id {}", id));
      (sequences ? after : before).push_back(id);
      if (before.size() + after.size() + description.prefix.size() + description.suffix.size() >
          kMaxPieces)
        parts.refuse(fmt::format("expected at most {} tokens, found more", kMaxPieces));
    }
  }
  if (sequences != 1) parts.refuse("expected one \"Sequence\", found none");
  description.prefix.insert(description.prefix.begin(), before.begin(), before.end());
  description.suffix.insert(description.suffix.end(), after.begin(), after.end());
}

// "pair": [..., {"Sequence": {"id": "A"}}, ..., {"Sequence": {"id": "B"}}, ...]. One of another
// form, which no model of pairs has, leaves the two texts bare.
void read_pair(const JsonField& field, const TokenSet& tokens, PairRules& pair) {
  const auto parts = field.find("pair");
  if (!parts || parts->array().size() > kMaxPieces) return;
  PairRules found;
  std::vector<int32_t>* at = &found.prefix;
  std::string sequences;
  for (size_t i = 0; i < parts->array().size(); ++i) {
    const JsonField part = parts->element(i);
    if (const auto special = part.find("SpecialToken")) {
      const JsonField ids = field.at("special_tokens").at(special->at("id").string()).at("ids");
      for (size_t j = 0; j < ids.array().size() && at->size() < kMaxPieces; ++j) {
        at->push_back(static_cast<int32_t>(ids.element(j).integer(0, kMaxVocabulary - 1)));
        if (tokens.text_of(at->back()).empty()) return;
      }
      continue;
    }
    sequences += part.at("Sequence").at("id").string();
    at = at == &found.prefix ? &found.middle : &found.suffix;
  }
  if (sequences == "AB") pair = std::move(found);
}

void read_post_processor(const JsonField& field, const TokenSet& tokens, Description& description) {
  const std::string& type = field.at("type").string();
  if (type == "Sequence") {
    field.allow_only({"type", "processors"});
    const JsonField list = field.at("processors");
    for (size_t i = 0; i < list.array().size(); ++i)
      read_post_processor(list.element(i), tokens, description);
  } else if (type == "TemplateProcessing") {
    read_template(field, tokens, description);
    read_pair(field, tokens, description.pair);
  } else if (type == "ByteLevel") {  // changes offsets, which are not kept
    field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else {
    field.refuse(fmt::format("a post-processor of type \"{}\" is not supported", type));
  }
}

// add_bos_token and add_eos_token: the classes for SentencePiece models build their post-processor
// from them, whatever tokenizer.json says. `legacy` and add_prefix_space say the same about the
// mark for a space in front.
void read_template_settings(const JsonField& root, Description& description) {
  const auto name = root.find("tokenizer_class");
  const bool llama =
      name && (name->string() == "LlamaTokenizer" || name->string() == "LlamaTokenizerFast");
  if (!llama && !description.from_sentencepiece) return;
  const auto set = [&](std::string_view key, int32_t id, std::vector<int32_t>& ids) {
    const auto field = root.find(key);
    if (!field && !description.from_sentencepiece) return;
    const bool wanted = field ? field->boolean() : !ids.empty();
    if (wanted && id < 0) field->refuse("the token to add is not named");
    ids.assign(wanted ? 1 : 0, id);
  };
  set("add_bos_token", description.bos_id, description.prefix);
  set("add_eos_token", description.eos_id, description.suffix);
  PairRules& pair = description.pair = {description.prefix, description.suffix, description.suffix};
  pair.middle.insert(pair.middle.end(), pair.prefix.begin(), pair.prefix.end());
  if (!description.from_sentencepiece) return;
  if (const auto prefix = root.find("add_prefix_space"); prefix && !prefix->boolean()) {
    set_space_prefix(SpacePrefix::kNone, description);
  } else if (const auto legacy = root.find("legacy");
             legacy && !legacy->boolean() && description.decoder.leading_spaces > 0) {
    set_space_prefix(SpacePrefix::kFirstSection, description);
  }
}

}  // namespace

Description read_tokenizer_json(std::string_view text, const std::string& file) {
  const json::Value document = json::parse(text, file, kFileLimits);
  const JsonField root(document, file);
  root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer",
                   "pre_tokenizer", "post_processor", "decoder", "model"});
  Description description;
  read_model(root.at("model"), description);
  TokenSet tokens(description);
  if (const auto list = root.find("added_tokens")) {
    expect_at_most(*list, kMaxAddedTokens, list->array().size(), "added tokens");
    for (size_t i = 0; i < list->array().size(); ++i) {
      const JsonField field = list->element(i);
      field.allow_only(
          {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      const auto id = static_cast<int32_t>(field.at("id").integer(0, kMaxVocabulary - 1));
      tokens.add(read_added_token(field, id), field);
    }
  }
  if (const auto field = root.find("normalizer")) description.normalizer = read_normalizer(*field);
  if (const auto field = root.find("pre_tokenizer")) {
    PreTokenizerRules rules = read_pre_tokenizer(*field);
    description.pre_tokenizer = std::move(rules.steps);
    description.byte_level = rules.byte_level;
  }
  if (const auto field = root.find("post_processor"))
    read_post_processor(*field, tokens, description);
  const JsonField decoder = root.at("decoder");
  description.decoder = read_decoder(decoder);
  if (description.decoder.byte_level != description.byte_level)
    decoder.refuse("expected ByteLevel in both the pre-tokenizer and the decoder, found it in one");
  return description;
}

void read_tokenizer_config(std::string_view text, const std::string& file,
                           Description& description) {
  const json::Value document = json::parse(text, file, kFileLimits);
  const JsonField root(document, file);
  root.object();
  TokenSet tokens(description);
  if (const auto decoder = root.find("added_tokens_decoder")) {
    expect_at_most(*decoder, kMaxAddedTokens, decoder->object().size(), "added tokens");
    for (size_t i = 0; i < decoder->object().size(); ++i) {
      const std::string& key = decoder->object()[i].first;
      const JsonField field = decoder->member(i);
      const int32_t id = number_of<int32_t>(key).value_or(-1);
      if (id < 0 || id >= kMaxVocabulary) field.refuse("expected a token id as the key");
      tokens.add(read_added_token(field, id), field);
    }
  }
  const auto read_special = [&](std::string_view key, int32_t& id) {
    const auto field = root.find(key);
    if (!field) return;
    const std::string& content =
        field->value().is_object() ? field->at("content").string() : field->string();
    id = tokens.id_of(content);
    if (id < 0) field->refuse(fmt::format("\"{}\" is not in the vocabulary", content));
    if (!tokens.is_added(id)) {
      AddedToken token;
      token.id = id;
      token.content = content;
      token.special = true;
      tokens.add(std::move(token), *field);
    }
  };
  read_special("bos_token", description.bos_id);
  read_special("eos_token", description.eos_id);
  read_template_settings(root, description);
}

}  // namespace invar::tokenizer
