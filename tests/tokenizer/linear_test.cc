// Every step from text to ids and back takes time that grows with the text and no faster, whatever
// the text: the worst texts that we know, for every kind of tokenizer. Processor time, so that
// other work on the machine does not count.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>
#include <iterator>

#include "base/input_file.h"
#include "tiny_files.h"

namespace invar {
namespace {

// What is linear takes some 20 ms at most; the square of ICU's sort takes half a second for 64 KiB
// of marks, other squares more for 32 KiB. --full tries 1 MiB.
bool is_full() {
  return std::getenv("INVAR_FULL_TESTS") != nullptr;
}
size_t text_bytes() {
  return is_full() ? size_t{1} << 20 : size_t{1} << 15;
}
double bound() {
  return is_full() ? 3.0 : 0.25;
}

double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// ---- The tokenizers ----

constexpr const char* kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Merges of equal neighbours, so that a text of one character is merged to the end.
std::vector<std::pair<std::string, std::string>> doubling_merges() {
  std::vector<std::pair<std::string, std::string>> merges = {{"a", "b"}, {"\xcc", "\x81"}};
  for (const char* seed : {"a", " ", "1", "\n"})
    for (std::string half = seed; half.size() < 64; half += half) merges.emplace_back(half, half);
  return merges;
}

json::Value added(int id, const std::string& content, bool lstrip, bool special = true) {
  return json::Object{{"id", id},
                      {"content", content},
                      {"lstrip", lstrip},
                      {"normalized", false},
                      {"special", special}};
}

json::Value byte_level(const char* pre_tokenizer, const char* normalizer = "null") {
  json::Value document = tiny_json(doubling_merges());
  if (*pre_tokenizer) member(document, "pre_tokenizer") = json::parse(pre_tokenizer, "test");
  member(document, "normalizer") = json::parse(normalizer, "test");
  json::Array& tokens = member(document, "added_tokens").as_array();
  const int next = static_cast<int>(tokens[1].find("id")->as_integer()) + 1;
  tokens.push_back(added(next, "<|im_start|>", false));
  tokens.push_back(added(next + 1, "<mask>", true));
  tokens.push_back(added(next + 2, std::string(63, '<') + '>', false, false));
  tokens.push_back(added(next + 3, std::string(31, ' ') + '\t', false, false));
  return document;
}

// Llama 2's and Mistral's: characters and bytes of a vocabulary in SentencePiece's way.
json::Value sentencepiece(const char* normalizer, const char* pre_tokenizer) {
  json::Value document = byte_level("");
  json::Object vocab{{"<unk>", 0}};
  for (int b = 0; b < 256; ++b) vocab.emplace_back(fmt::format("<0x{:02X}>", b), b + 1);
  json::Array merges;
  const auto add = [&](const std::string& token) {
    vocab.emplace_back(token, static_cast<int>(vocab.size()));
  };
  for (const char* seed : {"\xe2\x96\x81", "a", "b", "1"}) {
    std::string half = seed;
    for (add(half); half.size() < 64; half += half, add(half))
      merges.push_back(json::Array{half, half});
  }
  add("ab"), merges.push_back("a b");
  member(document, "added_tokens") = json::Array{added(0, "<unk>", false)};
  member(document, "normalizer") = json::parse(normalizer, "test");
  member(document, "pre_tokenizer") = json::parse(pre_tokenizer, "test");
  member(document, "decoder") = json::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})",
                                            "test");
  member(document, "model.byte_fallback") = true;
  member(document, "model.vocab") = std::move(vocab);
  member(document, "model.merges") = std::move(merges);
  return document;
}

constexpr const char* kFalcon = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    {"type": "Digits", "individual_digits": false},
    {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated",
     "invert": false}]})";
constexpr const char* kDeepSeek = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}"}, "behavior": "Isolated",
     "invert": false},
    {"type": "Split", "pattern": {"Regex": "[一-龥぀-ゟ゠-ヿ]+"}, "behavior": "Isolated",
     "invert": false},
    {"type": "Split", "pattern": {"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
     "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})";
constexpr const char* kGpt2 = R"({"type": "ByteLevel", "add_prefix_space": true,
    "trim_offsets": true, "use_regex": true})";
constexpr const char* kPrepend = R"({"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})";
constexpr const char* kMetaspace = R"({"type": "Metaspace", "replacement": "\u2581",
    "prepend_scheme": "first", "split": true})";
constexpr const char* kWholeMetaspace = R"({"type": "Metaspace", "replacement": "\u2581",
    "prepend_scheme": "always", "split": false})";

std::vector<std::pair<std::string, Tokenizer>> tokenizers() {
  const auto split = [](const char* pattern) { return json::dump(split_then_byte_level(pattern)); };
  std::vector<std::pair<std::string, Tokenizer>> all;
  const auto add = [&](const char* name, const json::Value& document) {
    all.emplace_back(name, from_json(document));
  };
  add("gpt2", byte_level(kGpt2));
  add("llama 3", byte_level(""));
  add("qwen (NFC)", byte_level("", R"({"type": "NFC"})"));
  add("gpt-4o", byte_level(split(kGpt4oPattern).c_str()));
  add("deepseek", byte_level(kDeepSeek));
  add("falcon", byte_level(kFalcon));
  add("NFD", byte_level(kGpt2, R"({"type": "NFD"})"));
  add("NFKC", byte_level(kGpt2, R"({"type": "NFKC"})"));
  add("NFKD", byte_level(kGpt2, R"({"type": "NFKD"})"));
  add("llama 2", sentencepiece(kPrepend, "null"));
  add("mistral", sentencepiece("null", kMetaspace));
  add("metaspace", sentencepiece("null", kWholeMetaspace));
  const std::string recorded = INVAR_SOURCE_DIR "/tests/tokenizer/recorded/tokenizer.model";
  all.emplace_back("tokenizer.model",
                   Tokenizer::from_texts({"", "", "", read_whole_file(recorded)}, "dir"));
  return all;
}

// ---- The texts ----

using Units = std::vector<std::string>;

// Letters, white space, digits and punctuation that words are cut at, or are not.
const Units kPlain = {"a",  "A",    "b",   "aA",  "ab",   "aab",      " ",           "\n",
                      "\t", "\r\n", " \n", "\n ", "  x",  "1",        "12 ",         "1,",
                      ".",  ". ",   "'",   "'s",  "'ll ", "\xc2\xa0", "\xe2\x96\x81"};
// No spaces, scripts in turn, emoji that are joined.
const Units kScripts = {"\xc3\xa9",
                        "\xe4\xb8\xad",
                        "\xe4\xb8\xad\xe3\x81\x82",
                        "\xd9\x85",
                        "a\xd0\xb1\xe3\x81\x82\x31\xe0\xa4\x95\xd7\x90",
                        "\xf0\x9f\x91\xa9\xe2\x80\x8d",
                        "\xf0\x9f\x87\xa9",
                        "\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd"};
// Combining marks, also such as change places, and such as decompose into several.
const Units kMarks = {"e\xcc\x81",
                      "\xcc\x81",
                      "\xcc\x81\xcc\xa3",
                      "\xcd\x84",
                      "\xe0\xbd\xb3",
                      "\xcc\x81\xcc\xa3\xcd\x85\xcc\x95\xd6\xb0",
                      "\xe0\xbd\xb3\xe0\xbe\x81",
                      "\xe3\x82\x99"};
// Jamo, vowel signs that combine with what stands before them, characters that grow with NFKC.
const Units kComposed = {"\xe1\x84\x80", "\xe1\x85\xa1", "\xe1\x86\xa8", "\xe0\xa6\xbe",
                         "\xe1\xac\xb5", "\xef\xb7\xba", "\xe2\x91\xa0"};
// Added tokens, their beginnings, and the spelling of a byte.
const Units kTokens = {"<|im_start", "<|im_start|>", "<",       "<s",
                       "<mask",      "<mask>",       " <mask>", "                               x",
                       "<unk>",      "<0x41>"};

std::string repeated(std::string_view unit, size_t bytes = text_bytes()) {
  std::string text;
  while (text.size() + unit.size() <= bytes) text += unit;
  return text;
}

std::vector<std::string> texts() {
  const size_t marks = std::max(text_bytes(), size_t{1} << 16);  // as many as the bound needs
  std::vector<std::string> all;
  for (const Units* units : {&kPlain, &kScripts, &kComposed, &kTokens})
    for (const std::string& unit : *units) all.push_back(repeated(unit));
  for (const std::string& unit : kMarks) all.push_back(repeated(unit, marks));
  // One half goes before the other.
  all.push_back("e" + repeated("\xcc\x81", marks / 2) + repeated("\xcc\xa3", marks / 2));
  // What only the end of the text decides.
  for (const char* unit : {" ", "1", "\n", "'"}) all.push_back(repeated(unit) + "x");
  all.push_back(repeated(" ") + "<mask>");
  return all;
}

TEST(Linear, EveryTokenizerOnEveryText) {
  double slowest = 0;
  for (const auto& [name, tokenizer] : tokenizers())
    for (const std::string& text : texts()) {
      const double start = processor_seconds();
      const std::vector<int32_t> ids = tokenizer.encode(text);
      const double encoded = processor_seconds();
      const std::string back = tokenizer.decode(ids, {.skip_special = false});
      StreamDecoder decoder(tokenizer, {.skip_special = false});
      std::string streamed;
      for (const int32_t id : ids) decoder.push(id, streamed);
      decoder.finish(streamed);
      const double decoded = processor_seconds();
      EXPECT_EQ(back, streamed);
      const std::string unit = json::quoted(text.substr(0, 24));
      EXPECT_LT(encoded - start, bound()) << name << " encodes " << unit;
      EXPECT_LT(decoded - encoded, bound()) << name << " decodes " << unit;
      if (std::getenv("INVAR_SHOW_TIMES"))
        fmt::print("{:16} {:8.1f} ms {:8.1f} ms {:9} tokens {}\n", name, 1e3 * (encoded - start),
                   1e3 * (decoded - encoded), ids.size(), unit);
      slowest = std::max(slowest, decoded - start);
    }
  RecordProperty("slowest_ms", static_cast<int>(1e3 * slowest));
}

}  // namespace
}  // namespace invar
