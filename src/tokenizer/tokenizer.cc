#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/input_file.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/hf_tokenizer_json.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tekken_json.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/utf8.h"

namespace invar {

using namespace tokenizer;

namespace {

// Far above any prompt, far enough below 2 GiB for what normalization may add.
constexpr size_t kMaxText = size_t{1} << 26;

// "<0x4A>" is byte 0x4A.
std::optional<char> byte_named(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const size_t high = kDigits.find(token[3]), low = kDigits.find(token[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

std::string decoded(const DecoderRules& rules, const std::string& token) {
  if (rules.byte_level) return bytes_from_spelling(token).value_or(token);
  std::string bytes = token;
  const size_t most = 32 * token.size() + (size_t{4} << 10);
  for (const Replace& replace : rules.replace) replace_all(bytes, replace, most);
  if (const auto byte = byte_named(bytes); byte && rules.byte_fallback) bytes.assign(1, *byte);
  return bytes;
}

BpeRules bpe_rules(Description& description) {
  BpeRules rules;
  rules.merges = std::move(description.merges);
  rules.by_bytes = description.byte_level;
  rules.ignore_merges = description.ignore_merges;
  rules.unk_id = description.unk_id;
  rules.fuse_unk = description.fuse_unk;
  if (!description.byte_level) rules.space_mark = kSpaceMark;
  if (description.byte_level || description.byte_fallback) rules.byte_ids.assign(256, -1);
  for (size_t i = 0; i < description.tokens.size(); ++i) {
    const std::string& token = description.tokens[i];
    if (token.empty()) continue;
    const auto id = static_cast<int32_t>(i);
    // A token that spells no bytes is never met in text.
    const auto bytes = description.byte_level ? bytes_from_spelling(token) : token;
    if (bytes) rules.tokens.emplace_back(*bytes, id);
    const auto byte =
        description.byte_level
            ? (bytes && bytes->size() == 1 ? std::optional((*bytes)[0]) : std::nullopt)
            : byte_named(token);
    if (byte && !rules.byte_ids.empty()) rules.byte_ids[static_cast<unsigned char>(*byte)] = id;
  }
  return rules;
}

// Bytes of a user's text that one token can stand for; SIZE_MAX where that has no bound.
template <typename Parts>
size_t longest_token(const Description& description, const Parts& parts) {
  if (description.fuse_unk && description.unk_id >= 0) return SIZE_MAX;
  for (const AddedToken& token : description.added_tokens)
    if (token.lstrip || token.rstrip) return SIZE_MAX;  // any white space beside it
  size_t longest = 4;                                   // a character of no token
  for (size_t i = 0; i < parts.texts.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    longest = std::max({longest, parts.texts[id].size(), parts.bytes[id].size()});
  }
  for (const NormalizerStep& step : parts.normalizer) {
    const Replace* replace = std::get_if<Replace>(&step);
    if (replace && replace->to.size() < replace->from.size()) return SIZE_MAX;
    // A normal form makes at most three bytes one (Hangul's nine three, U+1FEF a grave accent).
    if (std::holds_alternative<UnicodeForm>(step)) longest *= 4;
  }
  for (const PreTokenizerStep& step : parts.pre_tokenizer) {
    const Split* split = std::get_if<Split>(&step);
    if (split && split->behavior == SplitBehavior::kRemoved) return SIZE_MAX;
  }
  return longest;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> TokenizerTexts::files() const {
  std::vector<std::pair<std::string, std::string>> all = {
      {"tokenizer.json", tokenizer_json},
      {"tokenizer_config.json", tokenizer_config_json},
      {"special_tokens_map.json", special_tokens_map_json},
      {"tokenizer.model", sentencepiece_model},
      {"tekken.json", tekken_json}};
  std::erase_if(all, [](const auto& file) { return file.second.empty(); });
  return all;
}

Tokenizer Tokenizer::load(const std::string& directory) {
  const std::filesystem::path folder(directory);
  const auto optional_file = [&](const char* name) {
    return std::filesystem::exists(folder / name) ? read_whole_file((folder / name).string())
                                                  : std::string();
  };
  TokenizerTexts texts;
  texts.tokenizer_json = optional_file("tokenizer.json");
  if (texts.tokenizer_json.empty()) texts.sentencepiece_model = optional_file("tokenizer.model");
  if (texts.tokenizer_json.empty() && texts.sentencepiece_model.empty())
    texts.tekken_json = optional_file("tekken.json");
  texts.tokenizer_config_json = optional_file("tokenizer_config.json");
  texts.special_tokens_map_json = optional_file("special_tokens_map.json");
  return from_texts(texts, directory);
}

Tokenizer Tokenizer::from_texts(const TokenizerTexts& texts, const std::string& name) {
  const auto path = [&](const char* file) { return (std::filesystem::path(name) / file).string(); };
  Description description;
  if (!texts.tokenizer_json.empty())
    description = read_tokenizer_json(texts.tokenizer_json, path("tokenizer.json"));
  else if (!texts.sentencepiece_model.empty())
    description = read_sentencepiece_model(texts.sentencepiece_model, path("tokenizer.model"));
  else if (!texts.tekken_json.empty())
    description = read_tekken_json(texts.tekken_json, path("tekken.json"));
  else
    fail("{}: expected tokenizer.json, tokenizer.model or tekken.json, found none", name);
  if (!texts.special_tokens_map_json.empty())
    read_tokenizer_config(texts.special_tokens_map_json, path("special_tokens_map.json"),
                          description);
  if (!texts.tokenizer_config_json.empty())
    read_tokenizer_config(texts.tokenizer_config_json, path("tokenizer_config.json"), description);
  return Tokenizer(std::move(description));
}

Tokenizer Tokenizer::none(int32_t vocab, const std::string& directory) {
  Description description;
  description.tokens.resize(static_cast<size_t>(vocab));
  description.missing = fmt::format(
      "{} has no tokenizer (tokenizer.json, tokenizer.model or tekken.json): expected token ids, "
      "found what needs text",
      directory);
  return Tokenizer(std::move(description));
}

Tokenizer::Tokenizer(Description description) {
  auto parts = std::make_unique<Parts>();
  std::vector<std::string> texts = description.tokens;
  for (const AddedToken& token : description.added_tokens) {
    if (static_cast<size_t>(token.id) >= texts.size()) texts.resize(token.id + 1);
    texts[token.id] = token.content;
  }
  parts->special.assign(texts.size(), false);
  std::vector<bool> added(texts.size(), false);
  for (const AddedToken& token : description.added_tokens) {
    parts->special[token.id] = token.special;
    added[token.id] = true;
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    parts->texts.push_back(texts[i]);
    // Added tokens are not spelled byte by byte; the marks in them are spaces like all others
    // (Gemma's tokens of many).
    const bool is_verbatim = added[i] && description.decoder.byte_level;
    parts->bytes.push_back(is_verbatim ? texts[i] : decoded(description.decoder, texts[i]));
  }
  parts->ids = StringTable(texts.size());
  for (size_t i = 0; i < texts.size(); ++i)
    if (!texts[i].empty()) parts->ids.insert(parts->texts[i], static_cast<int32_t>(i));

  // Where two tokens look the same once normalized, special ones come first.
  for (const bool special : {true, false})
    for (const AddedToken& token : description.added_tokens) {
      if (token.special != special) continue;
      if (!token.normalized) {
        parts->raw.add(token, token.content);
      } else {
        std::string content = token.content;
        normalize(description.normalizer, content);
        if (content.empty()) fail("the added token \"{}\" is empty once normalized", token.content);
        parts->normalized.add(token, content);
      }
    }
  parts->normalizer = std::move(description.normalizer);
  parts->pre_tokenizer = std::move(description.pre_tokenizer);
  parts->prefix = std::move(description.prefix);
  parts->suffix = std::move(description.suffix);
  parts->pair = std::move(description.pair);
  parts->leading_spaces = description.decoder.leading_spaces;
  parts->bare_first_token = description.decoder.bare_first_token;
  parts->bos_id = description.bos_id;
  parts->eos_id = description.eos_id;
  parts->missing = description.missing;
  parts->longest_token = longest_token(description, *parts);
  parts->bpe.emplace(bpe_rules(description));
  parts_ = std::move(parts);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

void Tokenizer::expect_text() const {
  if (!parts_->missing.empty()) fail_usage("{}", parts_->missing);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  expect_text();
  if (text.size() > kMaxText)
    fail_usage("expected at most {} bytes of text, found {}", kMaxText, text.size());
  if (const size_t at = utf8::find_invalid(text); at != std::string_view::npos)
    fail_usage("expected UTF-8 text, found byte {:#04x} at offset {}",
               static_cast<unsigned char>(text[at]), at);
  const Parts& parts = *parts_;
  std::vector<int32_t> ids, symbols;
  ids.reserve(text.size() / 3 + 8);
  if (options.add_special_tokens) ids = parts.prefix;

  Pieces pieces;
  const auto encode_words = [&](std::string_view normal, bool at_start) {
    pieces.text = normal;
    pieces.spans.assign(1, {0, static_cast<uint32_t>(normal.size())});
    pre_tokenize(parts.pre_tokenizer, at_start, pieces);
    for (const Span span : pieces.spans) parts.bpe->encode(span.of(pieces.text), symbols, ids);
  };
  parts.raw.find(text, options.parse_special, [&](Span part, int32_t id) {
    if (id >= 0) {
      ids.push_back(id);
      return;
    }
    std::string normal(part.of(text));
    normalize(parts.normalizer, normal);
    parts.normalized.find(normal, options.parse_special, [&](Span word, int32_t token) {
      if (token >= 0) {
        ids.push_back(token);
      } else {
        encode_words(word.of(normal), part.begin == 0 && word.begin == 0);
      }
    });
  });
  if (options.add_special_tokens) ids.insert(ids.end(), parts.suffix.begin(), parts.suffix.end());
  return ids;
}

std::vector<int32_t> Tokenizer::pair_of(std::span<const int32_t> first,
                                        std::span<const int32_t> second) const {
  const tokenizer::PairRules& rules = parts_->pair;
  std::vector<int32_t> ids = rules.prefix;
  ids.insert(ids.end(), first.begin(), first.end());
  ids.insert(ids.end(), rules.middle.begin(), rules.middle.end());
  ids.insert(ids.end(), second.begin(), second.end());
  ids.insert(ids.end(), rules.suffix.begin(), rules.suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string text;
  StreamDecoder decoder(*this, options);
  for (const int32_t id : ids) decoder.push(id, text);
  decoder.finish(text);
  return text;
}

namespace {

std::optional<int32_t> known(int32_t id) {
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

}  // namespace

size_t Tokenizer::most_bytes(int64_t tokens) const {
  const size_t longest = parts_->longest_token;
  const auto count = static_cast<size_t>(std::max<int64_t>(tokens, 0));
  return count > 0 && longest > SIZE_MAX / count ? SIZE_MAX : longest * count;
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(parts_->texts.size());
}
std::string_view Tokenizer::token_bytes(int32_t id) const {
  return parts_->bytes[id];
}
std::string_view Tokenizer::token_text(int32_t id) const {
  return parts_->texts[id];
}
std::optional<int32_t> Tokenizer::bos_id() const {
  return known(parts_->bos_id);
}
std::optional<int32_t> Tokenizer::eos_id() const {
  return known(parts_->eos_id);
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token_text) const {
  return known(parts_->ids.find(token_text));
}

bool Tokenizer::is_special(int32_t id) const {
  return static_cast<size_t>(id) < parts_->special.size() && parts_->special[id];
}

}  // namespace invar
