#include "tokenizer/sentencepiece_model.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "tiny_files.h"
#include "tokenizer/utf8.h"

namespace invar {
namespace {

using Ids = std::vector<int32_t>;

// Writes the wire format.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  out += static_cast<char>(value);
  return out;
}
std::string integer(int field, uint64_t value) {
  return varint(field << 3) + varint(value);
}
std::string bytes(int field, std::string_view content) {
  return varint(field << 3 | 2) + varint(content.size()) + std::string(content);
}
std::string piece(std::string_view text, float score, int type = 1) {
  std::string number(sizeof score, 0);
  std::memcpy(number.data(), &score, sizeof score);
  return bytes(1, bytes(1, text) + varint(2 << 3 | 5) + number + integer(3, type));
}

constexpr const char* kMark = "\xe2\x96\x81";

struct Parts {
  std::string pieces = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) +
                       piece(kMark, -9) + piece("a", -9) + piece("b", -9) + piece("ab", -1) +
                       piece(std::string(kMark) + "a", -2) + piece("ba", -1) +
                       piece("<user>", 0, 4);
  std::string trainer = integer(3, 2);
  std::string normalizer = integer(4, 0);
  std::string rest;

  std::string model() const { return pieces + bytes(2, trainer) + bytes(3, normalizer) + rest; }
};

Tokenizer load(const Parts& parts, const std::string& config = "") {
  return Tokenizer::from_texts({"", config, "", parts.model()}, "dir");
}

TEST(SentencePiece, EncodesByScore) {
  const Tokenizer tokenizer = load({});
  const EncodeOptions bare{.add_special_tokens = false};
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{1, 3, 6}));
  EXPECT_EQ(tokenizer.encode("aab", bare), (Ids{7, 6}));
  // "ab" and "ba" have the same score: the leftmost pair goes first.
  EXPECT_EQ(tokenizer.encode("bab", bare), (Ids{3, 8, 5}));
  EXPECT_EQ(tokenizer.encode("xyb", bare), (Ids{3, 0, 5}));  // unknown characters in a row are one
  EXPECT_EQ(tokenizer.encode("", bare), Ids{});
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.vocab_size(), 10);
}

TEST(SentencePiece, SpecialTokensInText) {
  const Tokenizer tokenizer = load({});
  EXPECT_EQ(tokenizer.encode("a</s>a"), (Ids{1, 7, 2, 7}));
  EXPECT_EQ(tokenizer.encode("a<user>a"), (Ids{1, 7, 9, 7}));
  EXPECT_EQ(tokenizer.encode("</s>", {.parse_special = false}), (Ids{1, 3, 0}));
}

TEST(SentencePiece, Decodes) {
  const Tokenizer tokenizer = load({});
  EXPECT_EQ(tokenizer.decode(Ids{1, 7, 7, 2}), "a a");
  EXPECT_EQ(tokenizer.decode(Ids{7, 7}, {.continuation = true}), " a a");
  EXPECT_EQ(tokenizer.decode(Ids{1, 7}, {.skip_special = false}), "<s> a");
  EXPECT_EQ(tokenizer.decode(Ids{3, 3, 4}), " a");  // one space is the tokenizer's, one the text's
  EXPECT_EQ(tokenizer.decode(Ids{3}), "");
  EXPECT_EQ(tokenizer.token_bytes(7), " a");
  EXPECT_EQ(tokenizer.token_text(7), std::string(kMark) + "a");
}

TEST(SentencePiece, ConfigDecidesWhatIsAdded) {
  EXPECT_EQ(load({}, R"({"add_bos_token": false, "add_eos_token": true})").encode("ab"),
            (Ids{3, 6, 2}));
  EXPECT_EQ(load({}, R"({"bos_token": "<user>"})").encode("ab"), (Ids{9, 3, 6}));
  EXPECT_EQ(load({}, R"({"legacy": false})").encode("a</s>a"), (Ids{1, 7, 2, 4}));
  EXPECT_EQ(load({}, R"({"add_prefix_space": false})").encode("ab a"), (Ids{1, 6, 7}));
  EXPECT_EQ(load({}, R"({"add_prefix_space": false})").decode(Ids{7}), " a");
  EXPECT_EQ(load({}, R"({"added_tokens_decoder": {"10": {"content": "<new>"}}})").encode("<new>"),
            (Ids{1, 10}));
  Parts no_prefix;
  no_prefix.normalizer += integer(3, 0);
  EXPECT_EQ(load(no_prefix, R"({"legacy": false})").encode("a"), (Ids{1, 4}));
}

TEST(SentencePiece, ByteFallback) {
  Parts parts;
  parts.trainer += integer(35, 1);
  for (int b = 0; b < 256; ++b) parts.pieces += piece(fmt::format("<0x{:02X}>", b), 0, 6);
  const Tokenizer tokenizer = load(parts);
  const Ids ids = tokenizer.encode("a\xc3\xa9", {.add_special_tokens = false});
  EXPECT_EQ(ids, (Ids{7, 10 + 0xc3, 10 + 0xa9}));
  EXPECT_EQ(tokenizer.decode(ids), "a\xc3\xa9");
  StreamDecoder decoder(tokenizer);
  std::string out;
  decoder.push(10 + 0xc3, out);
  EXPECT_EQ(out, "");
  decoder.push(10 + 0xa9, out);
  EXPECT_EQ(out, "\xc3\xa9");
}

std::string message_for(const std::string& model) {
  try {
    Tokenizer::from_texts({"", "", "", model}, "dir");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SentencePiece, RefusesByName) {
  const auto with = [](auto change) {
    Parts parts;
    change(parts);
    return message_for(parts.model());
  };
  EXPECT_EQ(with([](Parts&) {}), "accepted");
  EXPECT_EQ(with([](Parts& p) { p.trainer = integer(3, 1); }),
            "dir/tokenizer.model: trainer_spec.model_type: UNIGRAM is not supported");
  EXPECT_EQ(with([](Parts& p) { p.trainer.clear(); }),
            "dir/tokenizer.model: trainer_spec.model_type: UNIGRAM is not supported");
  EXPECT_EQ(with([](Parts& p) { p.trainer += integer(24, 1); }),
            "dir/tokenizer.model: trainer_spec.treat_whitespace_as_suffix: not supported");
  EXPECT_EQ(with([](Parts& p) { p.trainer += integer(35, 1); }),
            "dir/tokenizer.model: expected 256 pieces for bytes, found 0");
  EXPECT_EQ(with([](Parts& p) { p.normalizer += bytes(2, "x"); }),
            "dir/tokenizer.model: normalizer_spec.precompiled_charsmap: not supported");
  EXPECT_EQ(with([](Parts& p) { p.normalizer.clear(); }),
            "dir/tokenizer.model: normalizer_spec.remove_extra_whitespaces: not supported");
  EXPECT_EQ(with([](Parts& p) { p.normalizer += integer(5, 0); }),
            "dir/tokenizer.model: normalizer_spec.escape_whitespaces: false is not supported");
  EXPECT_EQ(with([](Parts& p) { p.rest = bytes(5, bytes(2, "x")); }),
            "dir/tokenizer.model: denormalizer_spec.precompiled_charsmap: not supported");
  EXPECT_EQ(with([](Parts& p) { p.pieces.clear(); }),
            "dir/tokenizer.model: expected pieces, found none");
  EXPECT_EQ(with([](Parts& p) { p.pieces += piece("u", 0, 5); }),
            "dir/tokenizer.model: pieces[10]: type 5 is not supported");
  EXPECT_EQ(with([](Parts& p) { p.pieces += piece("", 0); }),
            "dir/tokenizer.model: pieces[10]: expected 1 to 1024 bytes, found 0");
  EXPECT_EQ(with([](Parts& p) { p.pieces += piece("\xff", 0); }),
            "dir/tokenizer.model: pieces[10]: expected UTF-8, found other bytes");
  EXPECT_EQ(with([](Parts& p) { p.pieces += piece("ab", 0); }),
            "dir/tokenizer.model: pieces[10]: \"ab\" stands twice");
  EXPECT_EQ(
      with([](Parts& p) { p.pieces += piece("aq", 0); }),
      "dir/tokenizer.model: pieces[10]: \"aq\" has a character that is no piece itself, which "
      "is not supported");
  EXPECT_EQ(message_for("\x0a\x05zz"),
            "dir/tokenizer.model: byte 2: expected more bytes, found the message broken");
  EXPECT_EQ(message_for(std::string(12, '\xff')),
            "dir/tokenizer.model: byte 10: expected a whole number, found the message broken");
  EXPECT_EQ(message_for(integer(1, 5)),
            "dir/tokenizer.model: byte 2: expected a message in field 1, found wire type 0");
  EXPECT_EQ(message_for(""),
            "dir: expected tokenizer.json, tokenizer.model or tekken.json, found none");
}

TEST(SentencePiece, DamagedFilesNeverCrash) {
  const std::string sound = Parts().model();
  std::mt19937 random(6);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string model = sound;
    for (int changes = 1 + round % 3; changes > 0 && !model.empty(); --changes) {
      const size_t at = random() % model.size();
      if (random() % 3) {
        model[at] = static_cast<char>(random() % 4 ? random() % 32 : random());
      } else if (random() % 2) {
        model.erase(at, 1 + random() % 4);
      } else {
        model.resize(at);
      }
    }
    try {
      const Tokenizer tokenizer = Tokenizer::from_texts({"", "", "", model}, "dir");
      ++accepted;
      tokenizer.decode(tokenizer.encode("ab <s>ba"));
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace invar
