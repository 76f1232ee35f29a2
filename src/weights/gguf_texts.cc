// A GGUF file's tokenizer as the files of a Hugging Face directory.
#include "weights/gguf_texts.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "weights/ends_of_turns.h"

namespace invar {

namespace {

class TextsMaker {
 public:
  explicit TextsMaker(const GgufFile& file) : file_(file), tokens_(list("tokenizer.ggml.tokens")) {
    for (const json::Value& token : tokens_)
      if (!token.is_string())
        fail("{}: tokenizer.ggml.tokens: expected texts, found {}", file_.path(),
             token.type_name());
    const json::Value* types = file_.find("tokenizer.ggml.token_type");
    if (!types) return;
    types_ = &list("tokenizer.ggml.token_type");
    if (types_->size() != tokens_.size())
      fail("{}: tokenizer.ggml.token_type: expected one for each token", file_.path());
  }

  std::vector<std::pair<std::string, std::string>> texts() const {
    const std::string& model = text("tokenizer.ggml.model");
    if (const json::Value* own = file_.find("tokenizer.huggingface.json");
        own && own->is_string() && !own->as_string().empty())
      return {{"tokenizer.json", own->as_string()},
              {"tokenizer_config.json", json::dump(config(false), 2)}};
    if (model == "gpt2" || model == "gemma4")
      return {{"tokenizer.json", json::dump(model == "gpt2" ? byte_pairs() : character_pairs())},
              {"tokenizer_config.json", json::dump(config(false), 2)}};
    if (model == "llama")
      return {{"tokenizer.model", pieces()},
              {"tokenizer_config.json", json::dump(config(true), 2)}};
    fail("{}: tokenizer.ggml.model: expected gpt2, llama or gemma4, found {}", file_.path(),
         json::quoted(model));
  }

 private:
  // As tokenizer.ggml.token_type numbers them.
  enum Kind : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

  const json::Value& value(std::string_view key) const {
    const json::Value* found = file_.find(key);
    if (!found) fail("{}: {} is missing", file_.path(), key);
    return *found;
  }
  const std::string& text(std::string_view key) const {
    const json::Value& found = value(key);
    if (!found.is_string())
      fail("{}: {}: expected a text, found {}", file_.path(), key, found.type_name());
    return found.as_string();
  }
  const json::Array& list(std::string_view key) const {
    const json::Value& found = value(key);
    if (!found.is_array())
      fail("{}: {}: expected an array, found {}", file_.path(), key, found.type_name());
    return found.as_array();
  }
  bool flag(std::string_view key, bool fallback) const {
    const json::Value* found = file_.find(key);
    if (found && !found->is_bool())
      fail("{}: {}: expected a boolean, found {}", file_.path(), key, found->type_name());
    return found ? found->as_bool() : fallback;
  }
  Kind kind(size_t id) const {
    if (!types_) return kNormal;
    const json::Value& type = (*types_)[id];
    const auto found = type.to_integer();
    if (!found || *found < kNormal || *found > kByte)
      fail("{}: tokenizer.ggml.token_type: expected 1 to 6, found {}", file_.path(),
           json::excerpt(type));
    return static_cast<Kind>(*found);
  }
  // The id that a key names, or the fallback; -1: none.
  int64_t id(const char* name, int64_t fallback = -1) const {
    const json::Value* found = file_.find(fmt::format("tokenizer.ggml.{}_token_id", name));
    const auto id = found ? found->to_integer() : fallback;
    const int64_t count = std::ssize(tokens_);
    if (!id || *id >= count)
      fail("{}: tokenizer.ggml.{}_token_id: expected an id below {}, found {}", file_.path(), name,
           count, json::excerpt(*found));
    return std::max<int64_t>(*id, -1);
  }

  // The value for a file that is older than the key.
  std::string usual_pre_tokenizer() const {
    const std::string& architecture = text("general.architecture");
    if (architecture.starts_with("qwen")) return "qwen2";
    constexpr size_t kLlama3 = 128000;  // tokens of its vocabulary, the first with byte pairs
    if (architecture == "llama" && tokens_.size() >= kLlama3) return "llama-bpe";
    if (architecture == "phi2" || architecture == "olmo") return "gpt-2";
    fail("{}: tokenizer.ggml.pre is missing, and files of {} have several", file_.path(),
         json::quoted(architecture));
  }

  // Files that are older than the key have the way that their architecture's models have.
  const GgufPreTokenizer& pre_tokenizer() const {
    const std::string name =
        file_.find("tokenizer.ggml.pre") ? text("tokenizer.ggml.pre") : usual_pre_tokenizer();
    std::string known;
    for (const GgufPreTokenizer& one : gguf_pre_tokenizers()) {
      const std::string names = fmt::format(" {} ", one.names);
      if (!name.empty() && names.find(fmt::format(" {} ", name)) != names.npos) return one;
      known += (known.empty() ? "" : " ") + std::string(one.names);
    }
    fail("{}: tokenizer.ggml.pre: expected one of {}, found {}", file_.path(), known,
         json::quoted(name));
  }

  // Tokens that merges make, and those that stand for a text of their own.
  struct Vocabulary {
    json::Object merged;
    json::Array added;
  };
  Vocabulary vocabulary() const {
    Vocabulary all;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const Kind of = kind(i);
      const std::string& token = tokens_[i].as_string();
      if (of != kControl && of != kUserDefined && of != kUnknown)
        all.merged.emplace_back(token, static_cast<int64_t>(i));
      else
        all.added.push_back(json::Object{{"id", static_cast<int64_t>(i)},
                                         {"content", token},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", of != kUserDefined}});
    }
    return all;
  }

  json::Value byte_pairs() const {
    const GgufPreTokenizer& pre = pre_tokenizer();
    Vocabulary all = vocabulary();
    return json::Object{
        {"version", "1.0"},
        {"added_tokens", std::move(all.added)},
        {"normalizer", pre.is_nfc ? json::Value(json::Object{{"type", "NFC"}}) : nullptr},
        {"pre_tokenizer", steps(pre)},
        {"post_processor", post_processor(pre.adds_bos)},
        {"decoder", byte_level(true)},
        {"model", json::Object{{"type", "BPE"},
                               {"ignore_merges", pre.ignores_merges},
                               {"vocab", std::move(all.merged)},
                               {"merges", merges()}}}};
  }

  // Gemma 4: pairs of characters, a space being another character, and bytes of those that are no
  // tokens. Nothing cuts the text.
  json::Value character_pairs() const {
    constexpr const char* kSpace = "\u2581";
    const auto replace = [](const char* from, const char* to) {
      return json::Object{
          {"type", "Replace"}, {"pattern", json::Object{{"String", from}}}, {"content", to}};
    };
    Vocabulary all = vocabulary();
    return json::Object{
        {"version", "1.0"},
        {"added_tokens", std::move(all.added)},
        {"normalizer", replace(" ", kSpace)},
        {"pre_tokenizer", nullptr},
        {"post_processor", post_processor(true)},
        {"decoder", json::Object{{"type", "Sequence"},
                                 {"decoders", json::Array{replace(kSpace, " "),
                                                          json::Object{{"type", "ByteFallback"}},
                                                          json::Object{{"type", "Fuse"}}}}}},
        {"model", json::Object{{"type", "BPE"},
                               {"fuse_unk", true},
                               {"byte_fallback", true},
                               {"ignore_merges", false},
                               {"vocab", std::move(all.merged)},
                               {"merges", merges()}}}};
  }

  // "a b", apart by the first space behind the first character.
  json::Value merges() const {
    json::Array pairs;
    for (const json::Value& merge : list("tokenizer.ggml.merges")) {
      const std::string& both = merge.is_string() ? merge.as_string() : std::string();
      const size_t space = both.find(' ', 1);
      if (space == std::string::npos)
        fail("{}: tokenizer.ggml.merges: expected two tokens with a space between, found {}",
             file_.path(), json::excerpt(merge));
      pairs.push_back(json::Array{both.substr(0, space), both.substr(space + 1)});
    }
    return pairs;
  }

  static json::Value byte_level(bool has_pattern) {
    return json::Object{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", has_pattern}};
  }

  static json::Value steps(const GgufPreTokenizer& pre) {
    json::Array steps;
    for (const char* pattern : pre.patterns)
      steps.push_back(json::Object{{"type", "Split"},
                                   {"pattern", json::Object{{"Regex", pattern}}},
                                   {"behavior", "Isolated"},
                                   {"invert", false}});
    if (pre.splits_digits)
      steps.push_back(json::Object{{"type", "Digits"}, {"individual_digits", true}});
    steps.push_back(byte_level(pre.has_gpt2_pattern));
    return json::Object{{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
  }

  // Begin-of-text in front, where the model wants it.
  json::Value post_processor(bool adds_bos) const {
    json::Array single;
    json::Value special = json::Object{};
    const auto add = [&](int64_t token) {
      const std::string& name = tokens_[static_cast<size_t>(token)].as_string();
      single.push_back(json::Object{{"SpecialToken", json::Object{{"id", name}, {"type_id", 0}}}});
      special.set(
          name,
          json::Object{{"id", name}, {"ids", json::Array{token}}, {"tokens", json::Array{name}}});
    };
    const int64_t bos = id("bos"), eos = id("eos");
    if (bos >= 0 && flag("tokenizer.ggml.add_bos_token", adds_bos)) add(bos);
    single.push_back(json::Object{{"Sequence", json::Object{{"id", "A"}, {"type_id", 0}}}});
    if (eos >= 0 && flag("tokenizer.ggml.add_eos_token", false)) add(eos);
    if (single.size() == 1) return {};
    return json::Object{{"type", "TemplateProcessing"},
                        {"single", std::move(single)},
                        {"pair", json::Array{}},
                        {"special_tokens", std::move(special)}};
  }

  // A SentencePiece model, in protocol-buffer's wire format.
  std::string pieces() const;

  json::Value config(bool is_sentencepiece) const {
    json::Value config = json::Object{};
    const auto name = [&](const char* key, int64_t token) {
      if (token >= 0) config.set(key, tokens_[static_cast<size_t>(token)]);
    };
    name("bos_token", id("bos", is_sentencepiece ? 1 : -1));
    name("eos_token", id("eos", is_sentencepiece ? 2 : -1));
    if (is_sentencepiece) {
      config.set("add_bos_token", flag("tokenizer.ggml.add_bos_token", true));
      config.set("add_eos_token", flag("tokenizer.ggml.add_eos_token", false));
    }
    if (json::Value templates = chat_templates(); !templates.is_null())
      config.set("chat_template", std::move(templates));
    return config;
  }

  // The template, or with others one for each name.
  json::Value chat_templates() const {
    constexpr std::string_view kKey = "tokenizer.chat_template";
    if (!file_.find(kKey)) return {};
    json::Array all = {json::Object{{"name", "default"}, {"template", text(kKey)}}};
    for (const auto& [key, other] : file_.metadata())
      if (key.starts_with(kKey) && key.size() > kKey.size() + 1 && key[kKey.size()] == '.' &&
          other.is_string())
        all.push_back(json::Object{{"name", key.substr(kKey.size() + 1)}, {"template", other}});
    return all.size() == 1 ? json::Value(text(kKey)) : json::Value(std::move(all));
  }

  const GgufFile& file_;
  const json::Array& tokens_;
  const json::Array* types_ = nullptr;
};

// ---- Protocol buffers: fields of a number and a wire type

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  out += static_cast<char>(value);
}
void append_integer(std::string& out, int field, uint64_t value) {
  append_varint(out, static_cast<uint64_t>(field) << 3);
  append_varint(out, value);
}
void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_varint(out, static_cast<uint64_t>(field) << 3 | 2);
  append_varint(out, bytes.size());
  out += bytes;
}
void append_float(std::string& out, int field, float value) {
  append_varint(out, static_cast<uint64_t>(field) << 3 | 5);
  char bytes[4];
  std::memcpy(bytes, &value, 4);
  out.append(bytes, 4);
}

std::string TextsMaker::pieces() const {
  const json::Array& scores = list("tokenizer.ggml.scores");
  if (scores.size() != tokens_.size())
    fail("{}: tokenizer.ggml.scores: expected one for each token", file_.path());
  const int64_t unknown = id("unknown", 0);
  std::string model;
  bool has_bytes = false;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    // Tokens that are never used need not be told from those that no text can hold.
    Kind of = kind(i) == kUnused ? kControl : kind(i);
    if (static_cast<int64_t>(i) == unknown) of = kUnknown;
    has_bytes |= of == kByte;
    std::string piece;
    append_bytes(piece, 1, tokens_[i].as_string());
    append_float(piece, 2, static_cast<float>(scores[i].is_number() ? scores[i].as_number() : 0));
    append_integer(piece, 3, static_cast<uint64_t>(of));
    append_bytes(model, 1, piece);
  }
  std::string trainer, normalizer;
  append_integer(trainer, 3, 2);  // byte pairs
  append_integer(trainer, 35, has_bytes);
  append_integer(trainer, 41, static_cast<uint64_t>(id("bos", 1)));
  append_integer(trainer, 42, static_cast<uint64_t>(id("eos", 2)));
  append_integer(normalizer, 3, flag("tokenizer.ggml.add_space_prefix", true));
  append_integer(normalizer, 4, 0);
  append_integer(normalizer, 5, 1);
  append_bytes(model, 2, trainer);
  append_bytes(model, 3, normalizer);
  return model;
}

// Whether a token ends an answer, whatever a file's metadata forgets.
bool is_end(std::string_view token, bool has_return) {
  return ends_turn(token, has_return) || token == "<|endoftext|>" || token == "<|end_of_text|>";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> gguf_tokenizer_texts(const GgufFile& file) {
  return TextsMaker(file).texts();
}

json::Value gguf_generation_config(const GgufFile& file) {
  json::Value config = json::Object{};
  const auto id = [&](const char* name) -> std::optional<int64_t> {
    const json::Value* found = file.find(fmt::format("tokenizer.ggml.{}_token_id", name));
    return found ? found->to_integer() : std::nullopt;
  };
  std::vector<int64_t> ends;
  for (const char* name : {"eos", "eot", "eom"})
    if (const auto end = id(name)) ends.push_back(*end);
  const json::Value* tokens = file.find("tokenizer.ggml.tokens");
  const json::Value* types = file.find("tokenizer.ggml.token_type");
  if (tokens && tokens->is_array() && types && types->is_array()) {
    const bool has_return = std::ranges::find(tokens->as_array(), json::Value("<|return|>")) !=
                            tokens->as_array().end();
    for (size_t i = 0; i < std::min(tokens->as_array().size(), types->as_array().size()); ++i)
      if (const json::Value& token = tokens->as_array()[i];
          token.is_string() && types->as_array()[i] == json::Value(3) &&
          is_end(token.as_string(), has_return))
        ends.push_back(static_cast<int64_t>(i));
  }
  std::ranges::sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  if (const auto bos = id("bos")) config.set("bos_token_id", *bos);
  if (!ends.empty()) config.set("eos_token_id", json::Array(ends.begin(), ends.end()));
  // Sampling that the model's makers recommend.
  for (const auto& [from, to] : {std::pair("general.sampling.temp", "temperature"),
                                 {"general.sampling.top_k", "top_k"},
                                 {"general.sampling.top_p", "top_p"},
                                 {"general.sampling.min_p", "min_p"}})
    if (const json::Value* value = file.find(from); value && value->is_number())
      config.set(to, *value);
  return config;
}

}  // namespace invar
