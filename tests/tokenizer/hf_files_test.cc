// What a broken, hostile or unsupported tokenizer.json is answered with: one sentence that names
// file and field.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "tiny_files.h"

namespace invar {
namespace {

json::Value sound() {
  return tiny_json({{"h", "e"}, {"he", "y"}});
}

std::string message_for(const json::Value& document, const std::string& config = "") {
  try {
    from_json(document, config);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string message_with(std::string_view path, const char* value) {
  json::Value document = sound();
  member(document, path) = json::parse(value, "test");
  return message_for(document);
}

TEST(HfFiles, SoundFileIsAccepted) {
  EXPECT_EQ(message_for(sound()), "accepted");
}

// Every text would go through all of them.
TEST(HfFiles, LongPipelinesAreRefused) {
  const auto list = [](const std::string& one, int count, const std::string& last) {
    std::string all = "[";
    for (int i = 0; i < count; ++i) all += one + ",";
    return all + last + "]";
  };
  const auto normalizers = [&](int count) {
    const std::string nfc = R"({"type": "NFC"})";
    return R"({"type": "Sequence", "normalizers": )" + list(nfc, count - 1, nfc) + "}";
  };
  EXPECT_EQ(message_with("normalizer", normalizers(64).c_str()), "accepted");
  EXPECT_NE(message_with("normalizer", normalizers(10'000).c_str())
                .find("normalizer.normalizers[64]: expected at most 64 normalizers, found more"),
            std::string::npos);
  const std::string part = R"({"SpecialToken": {"id": "h"}})";
  const std::string single = list(part, 1'000'000, R"({"Sequence": {"id": "A"}})");
  const std::string processor = R"({"type": "TemplateProcessing", "single": )" + single +
                                R"(, "special_tokens": {"h": {"ids": [0]}}})";
  EXPECT_NE(message_with("post_processor", processor.c_str())
                .find("post_processor.single: expected at most 1024 pieces, found 1000001"),
            std::string::npos);
}

// Counted before any of them is looked at.
TEST(HfFiles, MoreThanModelsHaveIsRefused) {
  const auto list = [](const char* one, int count) {
    std::string all = "[";
    for (int i = 0; i < count; ++i) all += std::string(i ? "," : "") + one;
    return all + "]";
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != text.npos;
  };
  EXPECT_TRUE(has(message_with("added_tokens", list("1", 131'073).c_str()),
                  "expected at most 131072 added tokens, found 131073"));
  EXPECT_FALSE(has(message_with("added_tokens", list("1", 131'072).c_str()), "at most 131072"));
  json::Value file = sound();
  json::Value model = *file.find("model");
  model.set("merges", json::Array(2'000'001, json::Value(1)));
  file.set("model", model);
  EXPECT_TRUE(has(message_for(file), "expected at most 2000000 merges, found 2000001"));
}

TEST(HfFiles, RefusesByName) {
  const struct {
    const char *path, *value, *message;
  } cases[] = {
      {"model.type", R"("Unigram")", "model.type: a model of type \"Unigram\" is not supported"},
      {"model.dropout", "0.1", "model.dropout: not supported"},
      {"model.end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix: not supported"},
      {"model.unk_token", R"("<unk>")", "model.unk_token: \"<unk>\" is not in the vocabulary"},
      {"model.fuse_unk", "1", "model.fuse_unk: expected a boolean, found an integer"},
      {"model.vocab", "[]", "model.vocab: expected an object, found an array"},
      {"model.vocab", R"({"a": -1})", "model.vocab: the token \"a\" needs an id from 0 to 1048575"},
      {"model.vocab", R"({"a": 1e9})",
       "model.vocab: the token \"a\" needs an id from 0 to 1048575"},
      {"model.vocab", R"({"a": 7, "b": 7})", "model.vocab: the token \"b\" has the id of \"a\""},
      {"model.merges", R"(["h e", "x"])", "model.merges[1]: expected two tokens"},
      {"model.merges", R"(["h e x"])", "model.merges[0]: expected two tokens"},
      {"model.merges", R"([["h"]])", "model.merges[0]: expected two tokens"},
      {"model.merges", R"([["h", 1]])", "model.merges[0]: expected two tokens"},
      {"model.merges", R"([["h", "q"]])", "model.merges[0]: \"hq\" is not in the vocabulary"},
      {"model.merges", "null", "model: \"merges\" is missing"},
      {"normalizer", R"({"type": "Lowercase"})",
       "normalizer: a normalizer of type \"Lowercase\" is not supported"},
      {"normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})",
       "normalizer.normalizers[1]: a normalizer of type \"Nmt\" is not supported"},
      {"normalizer", R"({"type": "NFC", "form": 1})", "normalizer: \"form\" is not supported"},
      {"pre_tokenizer", R"({"type": "Whitespace"})",
       "pre_tokenizer: a pre-tokenizer of type \"Whitespace\" is not supported"},
      {"pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": 1})",
       "pre_tokenizer.add_prefix_space: expected a boolean, found an integer"},
      {"pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated",
                            "invert": false})",
       "pre_tokenizer.pattern.Regex: the pattern \"(\" cannot be read: missing closing parenthesis "
       "(at byte 1)"},
      {"pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Joined",
                            "invert": false})",
       "pre_tokenizer.behavior: \"Joined\" is not supported"},
      {"pre_tokenizer", "null",
       "decoder: expected ByteLevel in both the pre-tokenizer and the decoder, found it in one"},
      {"post_processor", R"({"type": "RobertaProcessing"})",
       "post_processor: a post-processor of type \"RobertaProcessing\" is not supported"},
      {"post_processor", R"({"type": "TemplateProcessing", "single": [], "special_tokens": {}})",
       "post_processor.single: expected one \"Sequence\", found none"},
      {"post_processor",
       R"({"type": "TemplateProcessing", "special_tokens": {"x": {"ids": [999]}},
           "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}]})",
       "post_processor.special_tokens.x.ids[0]: no token has the id 999"},
      {"decoder", R"({"type": "WordPiece"})",
       "decoder: a decoder of type \"WordPiece\" is not supported"},
      {"decoder", "null", "dir/tokenizer.json: \"decoder\" is missing"},
      {"added_tokens", R"([{"id": 256, "content": "x"}])",
       "added_tokens[0]: \"x\" has the id 256 of \"he\""},
      {"added_tokens", R"([{"id": 300, "content": "he"}])",
       "added_tokens[0]: \"he\" has the ids 256 and 300"},
      {"added_tokens", R"([{"id": 300, "content": ""}])",
       "added_tokens[0].content: expected a token, found nothing"},
      {"added_tokens", R"([{"id": 9999999999, "content": "x"}])",
       "added_tokens[0].id: expected an integer from 0 to 1048575, found 9999999999"},
      {"added_tokens", R"([{"id": 300, "content": "x", "color": 1}])",
       "added_tokens[0]: \"color\" is not supported"},
  };
  for (const auto& [path, value, message] : cases) {
    std::string expected = message;
    if (!expected.starts_with("dir/")) expected = "dir/tokenizer.json: " + expected;
    EXPECT_EQ(message_with(path, value), expected) << path << " " << value;
  }
  json::Value document = sound();
  document.set("spell_checker", true);
  EXPECT_EQ(message_for(document), "dir/tokenizer.json: \"spell_checker\" is not supported");
}

// Texts that a sentence names may be as long as the file.
TEST(HfFiles, RefusesInASentence) {
  std::string name;
  for (int i = 0; i < 1 << 18; ++i) name += "\xc3\xa4";
  json::Value document = sound();
  document.set(name, true);
  const std::string message = message_for(document);
  EXPECT_LT(message.size(), 500U);
  EXPECT_TRUE(message.ends_with("\xc3\xa4...")) << "cut behind a whole character";
  EXPECT_TRUE(message.starts_with("dir/tokenizer.json: \"\xc3\xa4")) << message;
  const std::string token = R"([{"id": 256, "content": ")" + name + R"("}])";
  EXPECT_LT(message_with("added_tokens", token.c_str()).size(), 500U);
}

TEST(HfFiles, RefusesByNameInTheConfig) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"bos_token": "<b>"})", "bos_token: \"<b>\" is not in the vocabulary"},
      {R"({"bos_token": 1})", "bos_token: expected a string, found an integer"},
      {R"({"added_tokens_decoder": {"x": {"content": "y"}}})",
       "added_tokens_decoder.x: expected a token id as the key"},
      {R"({"added_tokens_decoder": {"3": {"content": "y"}}})",
       "added_tokens_decoder.3: \"y\" has the id 3 of \"\xc4\x83\""},
      {R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true})",
       "add_bos_token: the token to add is not named"},
      {"[]", "expected an object, found an array"},
      {"{", ""},
  };
  for (const auto& [config, message] : cases) {
    const std::string found = message_for(sound(), config);
    EXPECT_TRUE(found.starts_with("dir/tokenizer_config.json: ")) << found;
    EXPECT_NE(found.find(message), std::string::npos) << found;
  }
}

// Random damage to a sound file: an Error or a working tokenizer, nothing else. Sanitizers watch
// this test.
TEST(HfFiles, DamagedFilesNeverCrash) {
  const std::string original = json::dump(sound());
  std::mt19937 random(4);
  const std::string pool = "{}[]\",:0129.-eE\\u\x80\xff\n tfnrue";
  int accepted = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = original;
    for (int changes = 1 + round % 3; changes > 0 && !text.empty(); --changes) {
      // Most of the file is the vocabulary; half of the damage goes to what lies before and behind
      // it.
      const size_t near_end = text.size() - 1 - random() % std::min<size_t>(text.size(), 1500);
      const size_t near_begin = random() % std::min<size_t>(text.size(), 300);
      const size_t anywhere = random() % text.size();
      const size_t at = random() % 2 ? anywhere : random() % 2 ? near_begin : near_end;
      switch (random() % 4) {
        case 0:
          text[at] = pool[random() % pool.size()];
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        case 2:
          text.insert(at, 1, pool[random() % pool.size()]);
          break;
        case 3:
          text.resize(random() % 8 ? text.size() : at);
          break;
      }
    }
    try {
      const Tokenizer tokenizer = Tokenizer::from_texts({text, "", "", ""}, "dir");
      ++accepted;
      const auto ids = tokenizer.encode("hey <s> 12 \xc3\xa9");
      tokenizer.decode(ids, {.skip_special = false});
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, 30);
  EXPECT_GT(refused, 500);
}

// The same with whole values replaced, which gets past the parser more often.
TEST(HfFiles, ExchangedValuesNeverCrash) {
  const char* values[] = {"null",  "true",
                          "-1",    "1e300",
                          "\"\"",  "\"Sequence\"",
                          "[]",    "[[]]",
                          "{}",    "{\"type\": null}",
                          "\"x\"", "1048575",
                          "[0]",   "\" \"",
                          "\"A\"", "9223372036854775807"};
  std::vector<std::string> paths;
  const auto collect = [&](const auto& self, const json::Value& value, std::string path) -> void {
    if (!value.is_object() || path == "model.vocab") return;
    for (const auto& [key, child] : value.as_object()) {
      paths.push_back(path.empty() ? key : path + "." + key);
      self(self, child, paths.back());
    }
  };
  collect(collect, sound(), "");
  int refused = 0;
  for (const std::string& path : paths)
    for (const char* value : values) refused += message_with(path, value) != "accepted";
  EXPECT_GE(paths.size(), 25u);
  EXPECT_GT(refused, static_cast<int>(paths.size()) * 8);
}

}  // namespace
}  // namespace invar
