#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "tiny_files.h"

namespace invar {
namespace {

using Ids = std::vector<int32_t>;

// 256 "he", 257 "ll", 258 "hell", 259 "hello", 260 " w", 261 <s>, 262 </s>
json::Value hello_json() {
  return tiny_json({{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {" ", "w"}});
}

TEST(Tokenizer, EncodesAndDecodes) {
  const Tokenizer tokenizer = from_json(hello_json());
  EXPECT_EQ(tokenizer.encode("hello world"), (Ids{259, 260, 'o', 'r', 'l', 'd'}));
  EXPECT_EQ(tokenizer.encode("<s>hell</s>"), (Ids{261, 258, 262}));
  EXPECT_EQ(tokenizer.encode("<s>", {.parse_special = false}), (Ids{'<', 's', '>'}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.decode(Ids{261, 259, 260, 262}), "hello w");
  EXPECT_EQ(tokenizer.decode(Ids{261, 259}, {.skip_special = false}), "<s>hello");
  EXPECT_EQ(tokenizer.decode(Ids{0xe2, 0x82, 'a', 999, -5}),
            "\xef\xbf\xbd"
            "a");
  EXPECT_EQ(tokenizer.vocab_size(), 263);
  EXPECT_EQ(tokenizer.token_bytes(260), " w");
  EXPECT_EQ(tokenizer.token_text(260), "\xc4\xa0w");
  EXPECT_EQ(tokenizer.id_of("\xc4\xa0w"), 260);
  EXPECT_EQ(tokenizer.id_of("nothing"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(261) && !tokenizer.is_special(260) && !tokenizer.is_special(-1));
}

TEST(Tokenizer, RoundTripsEveryByteOfUtf8) {
  const Tokenizer tokenizer = from_json(hello_json());
  std::string text;
  for (const char* part :
       {"", "caf\xc3\xa9 ", "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e",
        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80", "\r\n\t  \n", "'s 'LL 123456"}) {
    text += part;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  const std::string zeros("a\0b", 3);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(zeros)), zeros);
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = from_json(hello_json());
  try {
    tokenizer.encode("abc\xff");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "expected UTF-8 text, found byte 0xff at offset 3");
  }
  EXPECT_THROW(tokenizer.encode("\xed\xa0\x80"), UsageError);  // a surrogate
  EXPECT_THROW(tokenizer.encode(std::string((size_t{1} << 26) + 1, 'a')), UsageError);
}

TEST(Tokenizer, BothSpellingsOfMerges) {
  json::Value legacy = hello_json();
  member(legacy, "model.merges") =
      json::Array{"#version: 0.2", "h e", "l l", "he ll", "hell o", "\xc4\xa0 w"};
  EXPECT_EQ(from_json(legacy).encode("hello world"), from_json(hello_json()).encode("hello world"));
}

TEST(Tokenizer, NormalizesBetweenRawAndNormalizedTokens) {
  json::Value document = hello_json();
  member(document, "normalizer") = json::Object{{"type", "NFC"}};
  // "e" + acute accent becomes one character, in text and in the token that asks for it.
  member(document, "added_tokens").as_array()[0].set("content", "e\xcc\x81!");
  const Ids composed = {0xc3, 0xa9};
  EXPECT_EQ(from_json(document).encode("e\xcc\x81"), composed);
  EXPECT_EQ(from_json(document).encode("e\xcc\x81!"), Ids{261});
  EXPECT_EQ(from_json(document).encode("\xc3\xa9!"), (Ids{0xc3, 0xa9, '!'}));
  member(document, "added_tokens").as_array()[0].set("normalized", true);
  EXPECT_EQ(from_json(document).encode("\xc3\xa9!"), Ids{261});
}

TEST(Tokenizer, PostProcessors) {
  json::Value document = hello_json();
  const json::Value with_bos = json::parse(
      R"({"type": "TemplateProcessing",
          "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                     {"Sequence": {"id": "A", "type_id": 0}}],
          "pair": [],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [261], "tokens": ["<s>"]}}})",
      "test");
  member(document, "post_processor") =
      json::Object{{"type", "Sequence"},
                   {"processors", json::Array{json::Object{{"type", "ByteLevel"},
                                                           {"add_prefix_space", true},
                                                           {"trim_offsets", false},
                                                           {"use_regex", true}},
                                              with_bos}}};
  const Tokenizer tokenizer = from_json(document);
  EXPECT_EQ(tokenizer.encode("hell"), (Ids{261, 258}));
  EXPECT_EQ(tokenizer.encode("hell", {.add_special_tokens = false}), Ids{258});
  EXPECT_EQ(tokenizer.encode(""), Ids{261});
}

TEST(Tokenizer, ReadsTokenizerConfig) {
  const Tokenizer tokenizer = from_json(hello_json(), R"({
    "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "chat_template": "x",
    "model_max_length": 1000000000000000019884624838656,
    "added_tokens_decoder": {"263": {"content": "<tool>", "special": false},
                             "262": {"content": "</s>", "special": true, "lstrip": true}}})");
  EXPECT_EQ(tokenizer.bos_id(), 261);
  EXPECT_EQ(tokenizer.eos_id(), 262);
  EXPECT_EQ(tokenizer.vocab_size(), 264);
  EXPECT_EQ(tokenizer.encode("a </s><tool>"), (Ids{'a', 262, 263}));  // </s> now takes the space
  EXPECT_EQ(from_json(hello_json()).bos_id(), std::nullopt);
  const Tokenizer llama = from_json(hello_json(), R"({"tokenizer_class": "LlamaTokenizerFast",
    "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true})");
  EXPECT_EQ(llama.encode("hell"), (Ids{261, 258, 262}));
}

// The stages of Llama 2's and Mistral's files around the tiny vocabulary <unk>, mark, a, b, mark +
// a, two bytes.
json::Value metaspace_json(const char* normalizer, const char* pre_tokenizer, const char* decoder) {
  json::Value document = hello_json();
  member(document, "added_tokens") =
      json::Array{json::Object{{"id", 0}, {"content", "<unk>"}, {"special", true}}};
  member(document, "normalizer") = json::parse(normalizer, "test");
  member(document, "pre_tokenizer") = json::parse(pre_tokenizer, "test");
  member(document, "decoder") = json::parse(decoder, "test");
  member(document, "model.byte_fallback") = true;
  member(document, "model.unk_token") = "<unk>";
  member(document, "model.vocab") = json::Object{{"<unk>", 0},
                                                 {"\xe2\x96\x81", 1},
                                                 {"a", 2},
                                                 {"b", 3},
                                                 {"\xe2\x96\x81"
                                                  "a",
                                                  4},
                                                 {"<0xC3>", 5},
                                                 {"<0xA9>", 6}};
  member(document, "model.merges") = json::Array{"\xe2\x96\x81 a"};
  return document;
}

TEST(Tokenizer, SentencePieceAsJson) {
  const char* llama_decoder = R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})";
  const char* metaspace = R"({"type": "Metaspace", "replacement": "\u2581",
                              "prepend_scheme": "first", "split": true})";
  const Tokenizer llama = from_json(metaspace_json(R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})",
                                                   "null", llama_decoder));
  EXPECT_EQ(llama.encode("a b\xc3\xa9"), (Ids{4, 1, 3, 5, 6}));
  EXPECT_EQ(llama.encode("a<unk>a"), (Ids{4, 0, 4}));
  EXPECT_EQ(llama.encode("z"), (Ids{1, 0}));
  EXPECT_EQ(llama.decode(Ids{4, 1, 3, 5, 6}), "a b\xc3\xa9");
  EXPECT_EQ(llama.decode(Ids{4}, {.continuation = true}), " a");

  // Gemma's files add tokens of several marks, which are spaces.
  json::Value spaces = metaspace_json("null", "null", llama_decoder);
  member(spaces, "added_tokens")
      .as_array()
      .push_back(json::Object{{"id", 7},
                              {"content", "\xe2\x96\x81\xe2\x96\x81"},
                              {"normalized", false},
                              {"special", false}});
  EXPECT_EQ(from_json(spaces).decode(Ids{2, 7, 3}), "a  b");
  EXPECT_EQ(from_json(spaces).token_text(7), "\xe2\x96\x81\xe2\x96\x81");

  const Tokenizer mistral = from_json(metaspace_json("null", metaspace, metaspace));
  EXPECT_EQ(mistral.encode("a<unk>a a"), (Ids{4, 0, 2, 4}));
  EXPECT_EQ(mistral.decode(Ids{4, 2, 4}), "aa a");
  EXPECT_EQ(mistral.decode(Ids{1, 4}), " a");
  EXPECT_EQ(mistral.decode(Ids{4}, {.continuation = true}), " a");
}

TEST(Tokenizer, LoadsADirectory) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) /
                                       ("invar_tokenizer_test_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << json::dump(hello_json());
  std::ofstream(folder / "special_tokens_map.json") << R"({"bos_token": "<s>"})";
  const Tokenizer tokenizer = Tokenizer::load(folder.string());
  EXPECT_EQ(tokenizer.bos_id(), 261);
  std::filesystem::remove_all(folder);
  EXPECT_THROW(Tokenizer::load(folder.string()), Error);
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const Tokenizer tokenizer = from_json(hello_json());
  const Ids expected = tokenizer.encode("hello world, hello hell");
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        count += tokenizer.encode("hello world, hello hell") != expected;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace invar
