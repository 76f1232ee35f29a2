// GGUF files: what the writer writes is read back, and what is no such file gets a sentence.
#include <gtest/gtest.h>

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
    GgufContent content = small_content();
    for (GgufKey& one : content.metadata)
      if (one.name == key) one.value = std::move(value);
    ThreadPool pool(1);
    const std::string path = files_ / "other.gguf";
    std::filesystem::remove(path);
    write_gguf(path, content, small_source(), pool);
    return error_of([&] {
      open_hf_directory(path);
      model_texts(path);
    });
  };
  expect_message(refused("general.architecture", "mamba"), "found \"mamba\"");
  expect_message(refused("tokenizer.ggml.model", "bert"), "found \"bert\"");
  expect_message(refused("tokenizer.ggml.pre", "unheard-of"), "found \"unheard-of\"");
  expect_message(refused("tokenizer.ggml.eos_token_id", 9), "an id below 4");
}

}  // namespace
}  // namespace invar
