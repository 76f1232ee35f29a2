#include "tokenizer/tekken_json.h"

#include <fmt/format.h>

#include <unordered_map>

#include "base/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_field.h"

namespace invar::tokenizer {

namespace {

constexpr size_t kLongestToken = 1 << 12;  // bytes

// Special tokens of files that do not list theirs (versions up to 7), by id.
constexpr std::string_view kUsualSpecials[] = {"<unk>",
                                               "<s>",
                                               "</s>",
                                               "[INST]",
                                               "[/INST]",
                                               "[AVAILABLE_TOOLS]",
                                               "[/AVAILABLE_TOOLS]",
                                               "[TOOL_RESULTS]",
                                               "[/TOOL_RESULTS]",
                                               "[TOOL_CALLS]",
                                               "[IMG]",
                                               "<pad>",
                                               "[IMG_BREAK]",
                                               "[IMG_END]",
                                               "[PREFIX]",
                                               "[MIDDLE]",
                                               "[SUFFIX]",
                                               "[SYSTEM_PROMPT]",
                                               "[/SYSTEM_PROMPT]",
                                               "[TOOL_CONTENT]"};

std::string from_base64(const JsonField& field) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string_view text = field.string();
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  uint32_t held = 0;
  int bits = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) field.refuse("expected base64");
    held = held << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits & 0xff);
  }
  if (bytes.empty() || bytes.size() > kLongestToken)
    field.refuse(fmt::format("expected 1 to {} bytes", kLongestToken));
  return bytes;
}

// Special tokens of ids below `count`: those of the file, or the usual ones, and names for the
// others.
std::vector<AddedToken> specials_of(const JsonField& file, int64_t version, int64_t count) {
  std::vector<std::string> names;
  if (const auto listed = file.find("special_tokens")) {
    for (size_t i = 0; i < listed->array().size(); ++i) {
      const JsonField one = listed->element(i);
      if (one.at("rank").integer(0, count - 1) != static_cast<int64_t>(i))
        one.at("rank").refuse(fmt::format("expected {}", i));
      names.push_back(one.at("token_str").string());
    }
  } else if (version > 7) {
    file.refuse("expected special_tokens in a file of version 8 or later, found none");
  } else {
    names.assign(std::begin(kUsualSpecials), std::end(kUsualSpecials));
  }
  if (std::ssize(names) > count)
    file.refuse(fmt::format("expected at most {} special tokens, found {}", count, names.size()));
  std::vector<AddedToken> all;
  for (int32_t id = 0; id < count; ++id)
    all.push_back({.id = id,
                   .content = id < std::ssize(names) ? names[static_cast<size_t>(id)]
                                                     : fmt::format("<SPECIAL_{}>", id),
                   .special = true});
  return all;
}

// Two neighbours that are a token together become it, lowest rank first.
std::vector<Merge> merges_of(const std::vector<std::string>& bytes, int32_t first) {
  std::unordered_map<std::string_view, int32_t> ranks;
  for (size_t rank = 0; rank < bytes.size(); ++rank)
    ranks.emplace(bytes[rank], static_cast<int32_t>(rank));
  std::vector<Merge> merges;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    const std::string_view token = bytes[rank];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut)), right = ranks.find(token.substr(cut));
      if (left == ranks.end() || right == ranks.end()) continue;
      merges.push_back({.left = first + left->second,
                        .right = first + right->second,
                        .result = first + static_cast<int32_t>(rank),
                        .rank = static_cast<uint32_t>(rank)});
    }
  }
  return merges;
}

int64_t version_of(const JsonField& config) {
  const JsonField field = config.at("version");
  const std::string& text = field.string();
  int64_t version = 0;
  if (!text.starts_with('v') || text.size() < 2 || text.size() > 4) field.refuse("expected v3");
  for (const char c : text.substr(1)) {
    if (c < '0' || c > '9') field.refuse("expected a version such as v3");
    version = 10 * version + (c - '0');
  }
  return version;
}

}  // namespace

Description read_tekken_json(std::string_view text, const std::string& file) {
  const json::Value document =
      json::parse(text, file, {.max_bytes = size_t{64} << 20, .max_values = 8'000'000});
  const JsonField root(document, file);
  const JsonField config = root.at("config");
  const int64_t specials = config.at("default_num_special_tokens").integer(3, 1 << 16);
  const int64_t size = config.at("default_vocab_size").integer(specials + 256, kMaxVocabulary);
  const JsonField vocab = root.at("vocab");
  const auto count = static_cast<size_t>(size - specials);
  if (vocab.array().size() < count)
    vocab.refuse(fmt::format("expected {} tokens, found {}", count, vocab.array().size()));

  Description description;
  std::vector<std::string> bytes(count);
  description.tokens.resize(static_cast<size_t>(specials));
  for (size_t i = 0; i < count; ++i) {
    const JsonField one = vocab.element(i);
    if (one.at("rank").integer(0, INT32_MAX) != static_cast<int64_t>(i))
      one.at("rank").refuse(fmt::format("expected {}", i));
    bytes[i] = from_base64(one.at("token_bytes"));
    if (i < 256 && bytes[i] != std::string(1, static_cast<char>(i)))
      one.at("token_bytes").refuse(fmt::format("expected the byte {}", i));
    description.tokens.push_back(spelling_of(bytes[i]));
  }
  description.merges = merges_of(bytes, static_cast<int32_t>(specials));
  description.byte_level = true;
  description.ignore_merges = true;
  description.added_tokens = specials_of(root, version_of(config), specials);
  const JsonField pattern = config.at("pattern");
  description.pre_tokenizer.emplace_back(
      Split{Regex(pattern.string(), pattern.where()), SplitBehavior::kIsolated});
  description.decoder.byte_level = true;
  description.bos_id = 1;
  description.eos_id = 2;
  description.prefix = {description.bos_id};
  return description;
}

}  // namespace invar::tokenizer
