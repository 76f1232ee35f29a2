// Small tokenizer files for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/tokenizer.h"

namespace invar {

inline constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A split by `pattern`, then ByteLevel: the pre-tokenizer of Llama 3 and Qwen.
inline json::Value split_then_byte_level(const char* pattern) {
  return json::Object{
      {"type", "Sequence"},
      {"pretokenizers", json::Array{json::Object{{"type", "Split"},
                                                 {"pattern", json::Object{{"Regex", pattern}}},
                                                 {"behavior", "Isolated"},
                                                 {"invert", false}},
                                    json::Object{{"type", "ByteLevel"},
                                                 {"add_prefix_space", false},
                                                 {"trim_offsets", true},
                                                 {"use_regex", false}}}}};
}

// A byte-level tokenizer.json: the 256 bytes (id = byte), one token for each merge of two byte
// strings, then the special tokens <s> and </s>. Tests change members of it.
inline json::Value tiny_json(const std::vector<std::pair<std::string, std::string>>& merges) {
  json::Object vocab;
  for (int b = 0; b < 256; ++b)
    vocab.emplace_back(tokenizer::spelling_of(std::string(1, static_cast<char>(b))), b);
  json::Array pairs;
  for (const auto& [left, right] : merges) {
    vocab.emplace_back(tokenizer::spelling_of(left + right), static_cast<int>(vocab.size()));
    pairs.push_back(json::Array{tokenizer::spelling_of(left), tokenizer::spelling_of(right)});
  }
  const int first_special = static_cast<int>(vocab.size());
  json::Array added;
  for (const char* name : {"<s>", "</s>"})
    added.push_back(json::Object{{"id", first_special + static_cast<int>(added.size())},
                                 {"content", name},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", true}});
  return json::Object{{"version", "1.0"},
                      {"truncation", nullptr},
                      {"padding", nullptr},
                      {"added_tokens", added},
                      {"normalizer", nullptr},
                      {"pre_tokenizer", split_then_byte_level(kLlama3Pattern)},
                      {"post_processor", nullptr},
                      {"decoder", json::Object{{"type", "ByteLevel"},
                                               {"add_prefix_space", true},
                                               {"trim_offsets", true},
                                               {"use_regex", true}}},
                      {"model", json::Object{{"type", "BPE"},
                                             {"dropout", nullptr},
                                             {"unk_token", nullptr},
                                             {"continuing_subword_prefix", nullptr},
                                             {"end_of_word_suffix", nullptr},
                                             {"fuse_unk", false},
                                             {"byte_fallback", false},
                                             {"ignore_merges", false},
                                             {"vocab", vocab},
                                             {"merges", pairs}}}};
}

inline Tokenizer from_json(const json::Value& tokenizer_json, const std::string& config = "") {
  return Tokenizer::from_texts({json::dump(tokenizer_json), config, "", ""}, "dir");
}

// The member `path` ("model.vocab") of a document, to be changed in place.
inline json::Value& member(json::Value& document, std::string_view path) {
  json::Value* value = &document;
  while (!path.empty()) {
    const std::string_view key = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), key.size() + 1));
    value = const_cast<json::Value*>(value->find(key));
  }
  return *value;
}

}  // namespace invar
