// Text to token ids and back, as a model's own files define it.
//
// A tokenizer is read from a model directory: tokenizer.json (byte-level BPE with the patterns of
// GPT-2, Llama 3, Qwen and their like), tokenizer.model or tekken.json, beside it
// tokenizer_config.json and special_tokens_map.json. Whatever the files ask for and is not
// implemented is refused by name when they are read; nothing is ignored that changes an id.
//
// Text is UTF-8. Text that is not is refused with the byte where it breaks, never repaired: a
// repaired prompt would be another prompt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace invar {

namespace tokenizer {
struct Description;
}

struct EncodeOptions {
  // Adds what the model's post-processor adds around a text: usually its begin-of-text token.
  bool add_special_tokens = true;
  // Special tokens written out in the text become their ids. Off, they are text like any other, so
  // that a user cannot write a control token; added tokens that are not special are found either
  // way.
  bool parse_special = true;
};

struct DecodeOptions {
  bool skip_special = true;  // special tokens give no text
  // The ids go on from earlier ones: a leading space that some vocabularies put before every text
  // is then a space.
  bool continuation = false;
};

// The contents of the files, for tokenizers that are not on disk. Empty: the file is absent.
struct TokenizerTexts {
  std::string tokenizer_json, tokenizer_config_json, special_tokens_map_json;
  // tokenizer.model and tekken.json; read, in this order, only when there is no tokenizer_json.
  std::string sentencepiece_model, tekken_json;

  // Name and content of those that are there.
  std::vector<std::pair<std::string, std::string>> files() const;
};

// Immutable; every const function may be called from several threads at once.
class Tokenizer {
 public:
  // Throws Error naming file and field when a file is missing, broken or asks for what is not
  // implemented.
  static Tokenizer load(const std::string& directory);
  // The same from memory; `name` stands before the file names in errors.
  static Tokenizer from_texts(const TokenizerTexts& texts, const std::string& name);
  // A tokenizer for a directory without these files: ids have no text, and texts no ids.
  static Tokenizer none(int32_t vocab, const std::string& directory);
  explicit Tokenizer(tokenizer::Description description);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Throws UsageError where there is no text: of `none`.
  void expect_text() const;
  // Throws UsageError for text that is not UTF-8, is 2 GiB or longer, or holds what no token stands
  // for.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Two texts that were encoded without special tokens as one, the way a cross-encoder's model
  // reads pairs: with what the post-processor puts around and between them.
  std::vector<int32_t> pair_of(std::span<const int32_t> first,
                               std::span<const int32_t> second) const;
  // Bytes that are not UTF-8 become U+FFFD. Ids that no token has (models pad their vocabulary)
  // give no text.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // Texts of more bytes have more than `tokens` tokens, whatever they say; SIZE_MAX where there is
  // no such number: some tokenizers drop text, or put a run of any length into one token.
  size_t most_bytes(int64_t tokens) const;

  // One more than the largest id.
  int32_t vocab_size() const;
  // The bytes that the token stands for in the middle of a text, not always UTF-8; a special
  // token's are its name. Empty for ids that no token has.
  std::string_view token_bytes(int32_t id) const;
  // The token as its file spells it, by which id_of finds it.
  std::string_view token_text(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view token_text) const;
  bool is_special(int32_t id) const;

  // The tokens that tokenizer_config.json names.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

 private:
  friend class StreamDecoder;
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

// Turns ids into text one at a time. The output is UTF-8 at every moment: the bytes of an
// unfinished character wait for the rest of it. All pieces together are what Tokenizer::decode
// gives.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  // Appends the text that `id` completes, maybe none.
  void push(int32_t id, std::string& out);
  // The end: appends U+FFFD for bytes of a character that was never finished.
  void finish(std::string& out);

 private:
  void append(std::string_view bytes, std::string& out);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  bool bare_token_;     // the next token loses its spaces
  int spaces_to_drop_;  // at the beginning
  char waiting_[4];     // the start of a character
  int waiting_size_ = 0;
};

}  // namespace invar
