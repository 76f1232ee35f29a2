// GGUF files: what the writer writes is read back, and what is no such file gets a sentence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "model_files.h"
#include "numerics/blocks.h"
#include "numerics/quantise.h"
#include "weights/dummy_source.h"
#include "weights/gguf.h"
#include "weights/gguf_texts.h"
#include "weights/gguf_writer.h"
#include "weights/hf_directory.h"

namespace invar {
namespace {

GgufContent small_content() {
  using Number = GgufKey::Number;
  return {.metadata = {{"general.architecture", "llama"},
                       {"llama.embedding_length", 256},
                       {"llama.block_count", 1},
                       {"llama.feed_forward_length", 512},
                       {"llama.attention.head_count", 4},
                       {"llama.context_length", 128},
                       {"llama.rope.freq_base", 10000.0, Number::f32},
                       {"llama.attention.layer_norm_rms_epsilon", 1e-5, Number::f32},
                       {"tokenizer.ggml.model", "gpt2"},
                       {"tokenizer.ggml.pre", "qwen2"},
                       {"tokenizer.ggml.tokens", json::Array{"a", "b", "ab", "<|im_end|>"}},
                       {"tokenizer.ggml.token_type", json::Array{1, 1, 1, 3}, Number::i32},
                       {"tokenizer.ggml.merges", json::Array{"a b"}},
                       {"tokenizer.ggml.eos_token_id", 3},
                       {"tokenizer.chat_template", "{{ messages }}"}},
          .tensors = {{"token_embd.weight", "e", DType::q8_0},
                      {"blk.0.attn_q.weight", "q", DType::q4_k},
                      {"blk.0.attn_k.weight", "k", DType::q4_0},
                      {"output_norm.weight", "n", DType::f32},
                      {"output.weight", "o", DType::bf16}}};
}

DummySource small_source() {
  return DummySource(
      {{"e", {4, 256}}, {"q", {256, 256}}, {"k", {64, 256}}, {"n", {256}}, {"o", {4, 256}}}, 3);
}

class Gguf : public testing::Test {
 protected:
  std::string write(const char* name = "model.gguf") {
    ThreadPool pool(2);
    const std::string path = files_ / name;
    write_gguf(path, small_content(), small_source(), pool);
    return path;
  }
  // With other metadata, or more.
  std::string write_with(std::vector<GgufKey> keys, const std::vector<GgufItem>& tensors = {}) {
    GgufContent content = small_content();
    content.tensors.insert(content.tensors.end(), tensors.begin(), tensors.end());
    for (GgufKey& key : keys) {
      const auto same = std::ranges::find(content.metadata, key.name, &GgufKey::name);
      if (same == content.metadata.end())
        content.metadata.push_back(std::move(key));
      else
        *same = std::move(key);
    }
    ThreadPool pool(1);
    const std::string path = files_ / "other.gguf";
    std::filesystem::remove(path);
    write_gguf(path, content, small_source(), pool);
    return path;
  }
  // What is said of the file with other bytes at a place.
  std::string error_with(size_t at, std::string_view bytes) {
    std::string content = read_file(path_);
    content.replace(at, bytes.size(), bytes);
    return error_of_content(content);
  }
  std::string error_of_content(const std::string& content) {
    write_file(files_ / "broken.gguf", content);
    return error_of([&] { GgufFile{files_ / "broken.gguf"}; });
  }

  TempDirectory files_;
  std::string path_ = write();
};

TEST_F(Gguf, IsReadAsItWasWritten) {
  const auto found = open_checkpoint(path_);
  const DummySource source = small_source();
  for (const GgufItem& item : small_content().tensors) {
    const int64_t count = source.info(item.source).elements();
    EXPECT_EQ(found->info(item.name).shape, source.info(item.source).shape) << item.name;
    EXPECT_EQ(found->info(item.name).dtype, item.type) << item.name;
    std::vector<float> expected(count), values(count);
    source.read(item.source, 0, count, DType::f32, expected.data());
    found->read(item.name, 0, count, DType::f32, values.data());
    double off = 0, all = 0;
    for (int64_t i = 0; i < count; ++i) {
      off += std::abs(double{values[i]} - expected[i]);
      all += std::abs(double{expected[i]});
    }
    const double bound = !storage_of(item.type).has_blocks() ? 0
                         : item.type == DType::q8_0          ? 0.01
                                                             : 0.12;
    EXPECT_LE(off, bound * all) << item.name;
  }
}

TEST_F(Gguf, SaysWhatADirectoryWould) {
  const HfDirectory directory = open_hf_directory(path_);
  EXPECT_EQ(*directory.config.find("model_type"), json::Value("llama"));
  EXPECT_EQ(*directory.config.find("head_dim"), json::Value(64));
  EXPECT_EQ(*directory.config.find("tie_word_embeddings"), json::Value(false));
  EXPECT_EQ(*directory.generation_config.find("eos_token_id"), json::Value(json::Array{3}));
  auto texts = model_texts(path_);
  const json::Value tokenizer = json::parse(texts["tokenizer.json"], "tokenizer.json");
  EXPECT_EQ(tokenizer.find("model")->find("vocab")->as_object().size(), 3u);
  EXPECT_EQ(*tokenizer.find("normalizer")->find("type"), json::Value("NFC"));
  const json::Value config = json::parse(texts["tokenizer_config.json"], "tokenizer_config.json");
  EXPECT_EQ(*config.find("eos_token"), json::Value("<|im_end|>"));
  EXPECT_EQ(*config.find("chat_template"), json::Value("{{ messages }}"));
}

TEST_F(Gguf, ThatIsBrokenGetsASentence) {
  const std::string whole = read_file(path_);
  expect_message(error_with(0, "GGUX"), "expected a GGUF file");
  expect_message(error_with(4, std::string_view("\1\0\0\0", 4)), "version 2 or 3");
  expect_message(error_with(4, std::string_view("\0\0\0\3", 4)), "big-endian");
  expect_message(error_with(8, "\xff\xff\xff\xff\xff\xff\xff\xff"), "at most 262144 tensors");
  expect_message(error_with(16, "\xff\xff\xff\xff"), "keys of metadata");
  expect_message(error_with(24, "\xff\xff\xff\xff"), "a key of at most");
  expect_message(error_with(32, "\xa2"), "keys of printable ASCII");
  expect_message(error_with(33, "\n"), "keys of printable ASCII");
  for (size_t size = 1; size < whole.size(); size += size < 2000 ? 37 : 4001)
    EXPECT_NE(error_of_content(whole.substr(0, size)), "") << size;
  const size_t q = whole.find("blk.0.attn_q.weight") + 19;  // dimensions, sizes, type, offset
  expect_message(error_with(q, "\x09"), "1 to 4 dimensions");
  expect_message(error_with(q + 4, "\x01"), "whole blocks of 256");
  expect_message(error_with(q + 20, "\x10"), "its type IQ2_XXS is not supported");
  expect_message(error_with(q + 20, "\xff"), "its type 255 is not supported");
  expect_message(error_with(q + 24, "\x01"), "a multiple of 32");
  expect_message(error_with(q + 24, std::string_view("\0\0\0\0", 4)), "overlaps");
  write_file(files_ / "whole.gguf", whole);  // the control
  EXPECT_NO_THROW(GgufFile{files_ / "whole.gguf"});
}

TEST_F(Gguf, OfAnotherKindIsRefusedByName) {
  const auto refused = [&](const char* key, json::Value value) {
    const std::string path = write_with({{key, std::move(value)}});
    return error_of([&] {
      open_hf_directory(path);
      model_texts(path);
    });
  };
  expect_message(refused("general.architecture", "mamba"), "found \"mamba\"");
  expect_message(refused("tokenizer.ggml.model", "bert"), "found \"bert\"");
  expect_message(refused("tokenizer.ggml.pre", "unheard-of"), "found \"unheard-of\"");
  expect_message(refused("tokenizer.ggml.eos_token_id", 9), "an id below 4");
  expect_message(refused("general.architecture", 5), "expected a text, found 5");
  expect_message(refused("llama.attention.head_count", json::Array{4, 4}), "each of 1 layers");
  expect_message(refused("llama.block_count", json::Array{1, 2}), "different sizes");
  expect_message(refused("split.count", -1), "0 to 65535 parts");
}

TEST_F(Gguf, BiasesMayStandInOneTensor) {
  const auto has_bias = [&](const std::vector<GgufItem>& tensors) {
    return *open_hf_directory(write_with({}, tensors)).config.find("attention_bias");
  };
  EXPECT_EQ(has_bias({}), json::Value(false));
  EXPECT_EQ(has_bias({{"blk.0.attn_q.bias", "n", DType::f32}}), json::Value(true));
  EXPECT_EQ(has_bias({{"blk.0.attn_qkv.bias", "n", DType::f32}}), json::Value(true));
}

TEST_F(Gguf, TextIsCutAsItsPreTokenizerSays) {
  const auto cuts = [&](const char* name) {
    auto texts = model_texts(write_with({{"tokenizer.ggml.pre", name}}));
    const json::Value tokenizer = json::parse(texts["tokenizer.json"], "tokenizer.json");
    return tokenizer.find("pre_tokenizer")->find("pretokenizers")->as_array().size();
  };
  for (const char* name :
       {"llama-bpe", "qwen2", "glm4", "chatglm-bpe", "falcon-h1", "lfm2", "kimi-k2"})
    EXPECT_EQ(cuts(name), 2u) << name;
  EXPECT_EQ(cuts("deepseek-v3"), 4u);
  EXPECT_EQ(cuts("deepseek-llm"), 7u);
}

// Gemma 4's merges are of characters, of which a space is another one.
TEST_F(Gguf, PairsOfCharactersHaveBytesForWhatTheyLack) {
  GgufContent content = small_content();
  const auto set = [&](std::string_view name, json::Value value) {
    for (GgufKey& key : content.metadata)
      if (key.name == name) key.value = value;
  };
  set("tokenizer.ggml.model", "gemma4");
  std::erase_if(content.metadata,
                [](const GgufKey& key) { return key.name == "tokenizer.ggml.pre"; });
  ThreadPool pool(2);
  const std::string path = files_ / "characters.gguf";
  write_gguf(path, content, small_source(), pool);
  const json::Value tokenizer = json::parse(model_texts(path)["tokenizer.json"], "tokenizer.json");
  EXPECT_EQ(*tokenizer.find("normalizer")->find("content"), json::Value("\u2581"));
  EXPECT_EQ(*tokenizer.find("model")->find("byte_fallback"), json::Value(true));
  EXPECT_EQ(*tokenizer.find("pre_tokenizer"), json::Value());
  EXPECT_EQ(tokenizer.find("decoder")->find("decoders")->as_array().size(), 3u);
}

TEST_F(Gguf, ThatIsOlderThanTheKeyIsCutAsItsArchitectureIs) {
  GgufContent content = small_content();
  int files = 0;
  const auto texts_of = [&](const char* architecture) {
    for (GgufKey& key : content.metadata)
      if (key.name == "general.architecture") key.value = architecture;
    ThreadPool pool(2);
    const std::string path = files_ / fmt::format("older-{}.gguf", ++files);
    write_gguf(path, content, small_source(), pool);
    return model_texts(path)["tokenizer.json"];
  };
  const std::string said = texts_of("qwen2");
  std::erase_if(content.metadata,
                [](const GgufKey& key) { return key.name == "tokenizer.ggml.pre"; });
  EXPECT_EQ(texts_of("qwen2"), said);
  EXPECT_NE(texts_of("olmo"), said);
  expect_message(error_of([&] { texts_of("llama"); }), "tokenizer.ggml.pre is missing");
}

// gpt-oss has messages within an answer.
TEST_F(Gguf, WhatEndsAMessageWithinAnAnswerEndsNoAnswer) {
  const auto ends = [&](json::Array tokens) {
    const std::string path =
        write_with({{"tokenizer.ggml.tokens", std::move(tokens)},
                    {"tokenizer.ggml.token_type", json::Array{3, 3, 3, 3}, GgufKey::Number::i32}});
    return *open_hf_directory(path).generation_config.find("eos_token_id");
  };
  EXPECT_EQ(ends({"<|end|>", "b", "ab", "<|return|>"}), json::Value(json::Array{3}));
  EXPECT_EQ(ends({"<|end|>", "b", "ab", "<|other|>"}), json::Value(json::Array({0, 3})));
}

// llama-gguf-split --merge leaves a count of 0.
TEST_F(Gguf, ThatWasPutTogetherAgainHasNoParts) {
  EXPECT_EQ(GgufFile(write_with({{"split.count", 0}})).parts().size(), 1u);
}

// Metadata that nobody reads goes on under its name, so that it is refused as in a config.json,
// but for values that change nothing.
TEST_F(Gguf, KeysThatNobodyKnowsAreNotLost) {
  const auto config_with = [&](std::vector<GgufKey> keys) {
    return open_hf_directory(write_with(std::move(keys))).config;
  };
  const auto f32 = GgufKey::Number::f32;
  const std::vector<GgufKey> known = {{"llama.attention.clamp_kqv", 0.0, f32},
                                      {"llama.attention.sliding_window", 0},
                                      {"llama.expert_count", 0},
                                      {"llama.attention.causal", true},
                                      {"llama.vocab_size", 4},
                                      {"llama.rope.scaling.type", "none"},
                                      {"llama.rope.scaling.factor", 4.0, f32},
                                      {"llama.mm.tokens", 7}};
  EXPECT_EQ(config_with(known), open_hf_directory(path_).config);
  for (const GgufKey& key : std::vector<GgufKey>{{"llama.attention.clamp_kqv", 8.0, f32},
                                                 {"llama.attention.sliding_window", 64},
                                                 {"llama.expert_group_count", 8},
                                                 {"llama.attention.causal", false},
                                                 {"llama.pooling_type", 3},
                                                 {"llama.logit_scale", 0.5, f32},
                                                 {"llama.rope.scaling.attn_factor", 2.0, f32},
                                                 {"llama.unheard-of", "of"}})
    EXPECT_TRUE(config_with({key}).find(key.name)) << key.name;
}

TEST_F(Gguf, AFactorWithoutATypeScalesLinearly) {
  const auto f32 = GgufKey::Number::f32;
  const json::Value config =
      open_hf_directory(write_with({{"llama.rope.scaling.factor", 4.0, f32}})).config;
  const json::Value linear = json::Object{{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(*config.find("rope_scaling"), linear);
}

TEST_F(Gguf, WindowsOfLayersMayBeAList) {
  std::vector<GgufKey> keys = {
      {"general.architecture", "gemma3"},
      {"gemma3.attention.sliding_window", 8},
      {"gemma3.rope.freq_base_swa", 5000.0, GgufKey::Number::f32},
      {"gemma3.attention.sliding_window_pattern", json::Array{false, true, true}}};
  for (const GgufKey& one : small_content().metadata)
    if (one.name.starts_with("llama.")) {
      keys.push_back(one);
      keys.back().name = "gemma3." + one.name.substr(6);
      if (one.name == "llama.block_count") keys.back().value = 3;
    }
  const json::Value config = open_hf_directory(write_with(keys)).config;
  const json::Array types = {"full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_EQ(*config.find("layer_types"), json::Value(types));
  EXPECT_EQ(*config.find("rope_local_base_freq"), json::Value(5000.0));
  keys[3].value = json::Array{true};
  expect_message(error_of([&] { open_hf_directory(write_with(keys)); }), "each of 3 layers");
}

}  // namespace
}  // namespace invar
