#include "tokenizer/write_tokenizer.h"

#include "base/json.h"
#include "tokenizer/byte_level.h"

namespace invar {

using json::Array;
using json::Object;
using tokenizer::spelling_of;

namespace {

Object added_token(const std::string& content) {
  return {{"content", content}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},    {"normalized", false},  {"special", true}};
}

Object byte_level(bool trim_offsets) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", trim_offsets},
          {"use_regex", false}};
}

Object pre_tokenizer() {
  return {{"type", "Sequence"},
          {"pretokenizers", Array{Object{{"type", "Split"},
                                         {"pattern", Object{{"Regex", kQwen2Pattern}}},
                                         {"behavior", "Isolated"},
                                         {"invert", false}},
                                  byte_level(false)}}};
}

json::Value model(const TrainedBpe& bpe) {
  Object vocab;
  Array merges;
  std::vector<std::string> spellings;
  vocab.reserve(bpe.tokens.size());
  merges.reserve(bpe.merges.size());
  spellings.reserve(bpe.tokens.size());
  for (const std::string& token : bpe.tokens) {
    spellings.push_back(spelling_of(token));
    vocab.emplace_back(spellings.back(), static_cast<int>(vocab.size()));
  }
  for (const tokenizer::Merge& merge : bpe.merges)
    merges.push_back(Array{spellings[merge.left], spellings[merge.right]});
  json::Value model = Object{{"type", "BPE"},
                             {"dropout", nullptr},
                             {"unk_token", nullptr},
                             {"continuing_subword_prefix", nullptr},
                             {"end_of_word_suffix", nullptr},
                             {"fuse_unk", false},
                             {"byte_fallback", false},
                             {"ignore_merges", false}};
  model.set("vocab", std::move(vocab));  // moved: an initializer list would copy
  model.set("merges", std::move(merges));
  return model;
}

}  // namespace

SpecialTokens chatml_tokens() {
  SpecialTokens special;
  special.names = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  special.bos = special.pad = special.names[0];
  special.eos = special.names[2];
  special.chat_template =
      "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
      "{{ message['content'] }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  return special;
}

TokenizerTexts write_tokenizer(const TrainedBpe& bpe, const SpecialTokens& special) {
  Array added;
  Object added_by_id;
  for (const std::string& name : special.names) {
    const int id = static_cast<int>(bpe.tokens.size() + added.size());
    Object token = added_token(name);
    added_by_id.emplace_back(std::to_string(id), token);
    token.insert(token.begin(), {"id", id});
    added.push_back(std::move(token));
  }
  json::Value tokenizer = Object{{"version", "1.0"},
                                 {"truncation", nullptr},
                                 {"padding", nullptr},
                                 {"added_tokens", std::move(added)},
                                 {"normalizer", Object{{"type", "NFC"}}},
                                 {"pre_tokenizer", pre_tokenizer()},
                                 {"post_processor", byte_level(false)},
                                 {"decoder", byte_level(false)}};
  tokenizer.set("model", model(bpe));
  const Object config = {{"add_prefix_space", false},
                         {"added_tokens_decoder", std::move(added_by_id)},
                         {"bos_token", special.bos},
                         {"eos_token", special.eos},
                         {"pad_token", special.pad},
                         {"clean_up_tokenization_spaces", false},
                         {"chat_template", special.chat_template},
                         {"tokenizer_class", "PreTrainedTokenizerFast"}};
  const Object map = {
      {"bos_token", special.bos}, {"eos_token", special.eos}, {"pad_token", special.pad}};
  return {json::dump(tokenizer, 0) + "\n", json::dump(config, 2) + "\n", json::dump(map, 2) + "\n",
          ""};
}

}  // namespace invar
