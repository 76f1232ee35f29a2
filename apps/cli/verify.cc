// invar verify: computes a receipt again. invar receipt-key: makes the key that signs receipts.
#include <fmt/format.h>

#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/input_file.h"
#include "base/timer.h"
#include "command.h"
#include "frontend/text_engine.h"
#include "number_flags.h"
#include "session/verify.h"

namespace invar::cli {

namespace {

struct VerifyFlags {
  ModelFlags model;
  std::string receipt, public_key, template_file;
  bool unsigned_too = false, generates = false;
  int64_t prefix = 0;
};

// The receipt itself, or the first one of an answer that carries it.
json::Value find_receipt(const json::Value& value) {
  if (value.find("invar_receipt")) return value;
  for (const char* list : {"choices", "data"}) {
    const json::Value* all = value.find(list);
    if (!all || !all->is_array() || all->as_array().empty()) continue;
    const json::Value& first = all->as_array().front();
    if (const json::Value* receipt = first.find("receipt")) return *receipt;
    if (first.find("invar_receipt")) return first;
  }
  fail("expected a receipt, or an answer that has one, found neither");
}

Receipt read_receipt(const std::string& file) {
  constexpr int64_t kMost = int64_t{32} << 20;
  const std::string text = file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {})
                                       : read_whole_file(file, kMost);
  return receipt_from(find_receipt(json::parse(text, file)));
}

// Nothing, or what is wrong with the signature.
std::string signature_fault(const Receipt& receipt, const VerifyFlags& flags) {
  if (!flags.public_key.empty() && receipt.public_key != flags.public_key)
    return fmt::format("the key differs: the receipt names {}, expected {}",
                       json::quoted(receipt.public_key), flags.public_key);
  if (!flags.unsigned_too && !is_signed(receipt))
    return "the signature differs: it is not its public key's over what the receipt says";
  return {};
}

// Seconds in which one sequence alone generates the answer.
double generate(const Receipt& receipt, Model& model, const Tokenizer& tokenizer) {
  EngineFlags flags;
  flags.options.scheduler.max_num_seqs = 1;
  flags.options.scheduler.max_model_len =
      static_cast<int32_t>(receipt.prompt.size() + receipt.tokens.size());
  const auto engine = make_engine(model, flags);
  TextEngine text(*engine, tokenizer);
  TextRequest request{.prompt = receipt.prompt, .params = receipt.params, .choice = receipt.choice};
  request.params.max_tokens = static_cast<int32_t>(receipt.tokens.size());
  const Timer timer;
  const TextAnswer answer = text.answer(request);
  const double seconds = timer.seconds();
  if (answer.tokens != receipt.tokens) fail("the answer that was generated is not the receipt's");
  return seconds;
}

// `generation_seconds` is 0 where the answer was not generated again.
void print_verdict(const Receipt& receipt, const Verdict& verdict, double generation_seconds,
                   const VerifyFlags& flags) {
  if (flags.model.json) {
    json::Value report = json::Object{{"confirmed", verdict.is_confirmed},
                                      {"sentence", verdict.sentence},
                                      {"tokens", verdict.tokens},
                                      {"seconds", verdict.seconds},
                                      {"public_key", receipt.public_key}};
    if (generation_seconds > 0) report.set("generation_seconds", generation_seconds);
    fmt::print("{}\n", json::dump(report, 2));
    return;
  }
  if (generation_seconds > 0)
    fmt::print("generated at batch 1 in {:.3f} s, checked in {:.3f} s: {:.1f} times faster\n",
               generation_seconds, verdict.seconds, generation_seconds / verdict.seconds);
  fmt::print("{}\n", verdict.sentence);
  if (!verdict.is_confirmed) return;
  fmt::print("{} of {}, {}, {:.3f} s\n", receipt.id, receipt.name, receipt.model.arithmetic,
             verdict.seconds);
  if (!flags.unsigned_too) fmt::print("signed by {}\n", receipt.public_key);
}

int run_verify(VerifyFlags flags) {
  const Receipt receipt = read_receipt(flags.receipt);
  std::string fault = signature_fault(receipt, flags);
  Verdict verdict{.sentence = fault};
  double generation_seconds = 0;
  if (fault.empty()) {
    use_bundled_model(flags.model);
    const auto model = load_model(flags.model);
    const Tokenizer tokenizer = open_tokenizer(*model);
    const ReceiptModel known =
        receipt_model(model->options(), model->identity(),
                      weights_digest(model->options(), model->pool()), flags.template_file);
    verdict = verify(receipt, known, *model, tokenizer, flags.prefix);
    if (verdict.is_confirmed && flags.generates)
      generation_seconds = generate(receipt, *model, tokenizer);
  }
  print_verdict(receipt, verdict, generation_seconds, flags);
  return verdict.is_confirmed ? 0 : 1;
}

struct ReceiptKeyFlags {
  std::string file;
  bool json = false;
};

int run_receipt_key(const ReceiptKeyFlags& flags) {
  const std::string key = open_receipt_key(flags.file).public_key();
  fmt::print("{}\n", flags.json ? json::dump(json::Object{{"public_key", key}}, 2) : key);
  return 0;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "verify", "Recompute the answer of a receipt; exit with 0 if it is confirmed, 1 if not");
  auto flags = std::make_shared<VerifyFlags>();
  command
      ->add_option("RECEIPT", flags->receipt,
                   "File with a receipt, or with an answer that has one; - is the standard input")
      ->required();
  add_model_flags(*command, flags->model);
  command->add_option("--prefix", flags->prefix, "Check only the first N tokens; 0 checks all")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--public-key", flags->public_key, "Require this signing key (hexadecimal)");
  command->add_flag("--no-signature", flags->unsigned_too, "Do not check the signature");
  command->add_option("--chat-template", flags->template_file,
                      "The server's --chat-template, if it had one");
  command->add_flag("--time-generation", flags->generates,
                    "Also generate the answer at batch 1 and compare the times");
  command->callback([&action, flags] { action = [flags] { return run_verify(*flags); }; });
}

void add_receipt_key(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "receipt-key",
      "Print the public key of a key file for --receipt-key; creates the file if needed");
  auto flags = std::make_shared<ReceiptKeyFlags>();
  command->add_option("FILE", flags->file, "A private Ed25519 key in PEM")->required();
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([&action, flags] { action = [flags] { return run_receipt_key(*flags); }; });
}

}  // namespace invar::cli
