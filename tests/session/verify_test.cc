// Receipts: an answer's is confirmed, and no byte of it can be changed without being found.
#include "session/verify.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "frontend/constraint_compiler.h"
#include "frontend/text_engine.h"
#include "session/open.h"

namespace invar {
namespace {

// A made model, the tokenizer that belongs to it, and what its receipts say of it.
struct Made {
  Model model{{.model = "tiny", .load_format = "dummy:1", .threads = 1}};
  Tokenizer tokenizer = open_tokenizer(model);
  ReceiptModel known = receipt_model(model);
};

Made& made() {
  static Made one;
  return one;
}

// As a server makes it, of `tokens` tokens after a prompt of 40.
Receipt receipt_of(SamplingParams params, const std::string& form = {}) {
  EngineOptions options;
  options.scheduler.max_num_seqs = 2;
  options.kv_bytes = 8 << 20;
  options.scheduler.max_model_len = 256;
  Engine engine(made().model, options);
  TextEngine text(engine, made().tokenizer);
  Receipt receipt{.id = "cmpl-1",
                  .created = 1'700'000'000,
                  .name = "made",
                  .context = 256,
                  .model = made().known,
                  .params = checked(std::move(params), made().model.spec().vocab),
                  .stop = {"never to be seen"},
                  .grammar = form};
  for (int i = 0; i < 40; ++i) receipt.prompt.push_back(17 * i % 200);
  Request request{.prompt = receipt.prompt, .params = receipt.params, .stop = receipt.stop};
  if (!form.empty())
    request.constraint =
        ConstraintCompiler(made().tokenizer).compile(json::parse(form, "the form"));
  const TextAnswer answer = text.answer(request);
  receipt.tokens = answer.tokens;
  receipt.finish = name_of(answer.finish);
  std::vector<Digest> checkpoints = answer.hash_checkpoints;
  if (answer.tokens.size() % kReceiptLink != 0) checkpoints.push_back(answer.logits_hash);
  set_chain(receipt, checkpoints);
  return receipt;
}

SamplingParams sampled(int32_t tokens) {
  SamplingParams params;
  params.max_tokens = tokens;
  params.temperature = 0.9;
  params.top_k = 50;
  params.repetition_penalty = 1.1;
  params.presence_penalty = 0.25;
  params.logit_bias = {{5, 0.5}};
  params.bad_words = {{9, 8}};
  params.ignore_eos = true;
  params.seed = 11;
  return params;
}

// Whether the value is a receipt that the model confirms.
bool is_confirmed(const json::Value& value, std::string* sentence = nullptr) {
  try {
    const Verdict verdict =
        verify(receipt_from(value), made().known, made().model, made().tokenizer);
    if (sentence) *sentence = verdict.sentence;
    return verdict.is_confirmed;
  } catch (const Error& error) {
    if (sentence) *sentence = error.what();
    return false;
  }
}

json::Value changed_leaf(const json::Value& leaf) {
  if (leaf.is_bool()) return !leaf.as_bool();
  if (leaf.is_integer()) return leaf.as_integer() + 1;
  if (leaf.is_number()) return leaf.as_number() + 0.0001;
  std::string text = leaf.as_string();
  if (text.empty()) return "x";
  text.back() = text.back() == '0' ? '1' : '0';
  return text;
}

// Calls `visit(path)` for each leaf, with that leaf changed in `root`; also with each list one
// element shorter.
void change_each(json::Value& root, json::Value& at, const std::string& path,
                 const std::function<void(const std::string&)>& visit) {
  if (at.is_object()) {
    for (auto& [name, value] : at.as_object()) change_each(root, value, path + "/" + name, visit);
    return;
  }
  const json::Value before = at;
  if (at.is_array()) {
    for (size_t i = 0; i < at.as_array().size(); ++i)
      change_each(root, at.as_array()[i], path + "/" + std::to_string(i), visit);
    if (at.as_array().empty()) return;
    at.as_array().pop_back();
    visit(path + " without its last");
  } else {
    at = changed_leaf(before);
    visit(path);
  }
  at = before;
}

TEST(VerifyTest, ConfirmsAnAnswerOfEveryKind) {
  std::string sentence;
  EXPECT_TRUE(is_confirmed(to_json(receipt_of(sampled(100))), &sentence)) << sentence;
  EXPECT_EQ(sentence, "confirmed: 100 tokens and their logits");
  SamplingParams greedy;
  greedy.max_tokens = 64;  // whole links
  greedy.temperature = 0;
  EXPECT_TRUE(is_confirmed(to_json(receipt_of(greedy)), &sentence)) << sentence;
  const Receipt held = receipt_of(sampled(30), R"({"regex": "[a-f]{5,40}"})");
  EXPECT_TRUE(is_confirmed(to_json(held), &sentence)) << sentence;
}

TEST(VerifyTest, FindsEveryChangeWithAndWithoutTheSignature) {
  const ReceiptKey key;
  Receipt receipt = receipt_of(sampled(70));
  key.sign(receipt);
  json::Value value = to_json(receipt);
  ASSERT_TRUE(is_signed(receipt_from(value)));
  ASSERT_TRUE(is_confirmed(value));
  int changes = 0;
  change_each(value, value, "", [&](const std::string& path) {
    ++changes;
    bool is_still_signed = false;
    try {
      is_still_signed = is_signed(receipt_from(value));
    } catch (const Error&) {
    }
    EXPECT_FALSE(is_still_signed) << path;
    // Who signed it is the signature's alone.
    const bool says_who = path == "/public_key" || path == "/signature";
    EXPECT_TRUE(says_who || !is_confirmed(value)) << path;
  });
  EXPECT_GT(changes, 140);
  EXPECT_TRUE(is_confirmed(value)) << "it is as it was";
}

TEST(VerifyTest, NamesTheFirstTokenThatDiffers) {
  Receipt receipt = receipt_of(sampled(70));
  const int32_t said = receipt.tokens[33];
  receipt.tokens[33] = (said + 1) % made().model.spec().vocab;
  Verdict verdict = verify(receipt, made().known, made().model, made().tokenizer);
  EXPECT_TRUE(verdict.sentence.starts_with("token 34 differs: the receipt says"))
      << verdict.sentence;
  verdict = verify(receipt, made().known, made().model, made().tokenizer, {.prefix = 33});
  EXPECT_EQ(verdict.sentence, "confirmed: the first 33 of 70 tokens");
  receipt.model.weights[0] = receipt.model.weights[0] == 'a' ? 'b' : 'a';
  verdict = verify(receipt, made().known, made().model, made().tokenizer);
  EXPECT_TRUE(verdict.sentence.starts_with("the weights differ")) << verdict.sentence;
}

TEST(VerifyTest, AReceiptReadsBackAsItWasWrittenHoweverItIsSpelled) {
  const ReceiptKey key;
  Receipt receipt = receipt_of(sampled(5));
  key.sign(receipt);
  EXPECT_EQ(receipt_from(to_json(receipt)), receipt);
  const std::string indented = json::dump(to_json(receipt), 4);
  EXPECT_TRUE(is_signed(receipt_from(json::parse(indented, "indented"))));
  json::Value turned = to_json(receipt);
  std::reverse(turned.as_object().begin(), turned.as_object().end());
  EXPECT_TRUE(is_signed(receipt_from(turned)));
  turned.set("more", 1);
  EXPECT_THROW(receipt_from(turned), Error);
}

TEST(VerifyTest, AKeyIsMadeOnceAndReadFromItsFile) {
  const auto file =
      std::filesystem::temp_directory_path() / ("invar-receipt-key-" + std::to_string(getpid()));
  std::filesystem::remove(file);
  const std::string made_key = open_receipt_key(file).public_key();
  EXPECT_EQ(made_key.size(), 64U);
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(open_receipt_key(file).public_key(), made_key);
  EXPECT_THROW(ReceiptKey().save(file), Error) << "no key is written over";
  std::filesystem::resize_file(file, 20);
  EXPECT_THROW(open_receipt_key(file), Error);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace invar
