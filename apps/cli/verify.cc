// invar verify: computes an answer again, from its receipts (of numbers: verify_numbers.cc). invar
// receipt-key: makes the key that signs receipts.
#include <fmt/format.h>

#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/input_file.h"
#include "base/timer.h"
#include "command.h"
#include "frontend/text_engine.h"
#include "help_format.h"
#include "number_flags.h"
#include "session/adapter.h"
#include "session/served_answer.h"
#include "session/verify.h"
#include "verify.h"
#include "weights/lora_adapter.h"

namespace invar::cli {

json::Value read_json(const std::string& file) {
  constexpr int64_t kMost = int64_t{256} << 20;
  return json::parse(file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {})
                                 : read_whole_file(file, kMost),
                     file);
}

void take_arithmetic(const std::string& arithmetic, VerifyFlags& flags) {
  std::vector<std::string> parts(1);
  for (const char c : arithmetic) c == '/' ? (void)parts.emplace_back() : parts.back().push_back(c);
  if (parts.size() < 3) return;
  ModelOptions& options = flags.model.options;
  if (!flags.own_arithmetic && (parts[1] == "hopper" || parts[1] == "pair"))
    options.arithmetic = parts[1];
  if (!flags.own_weights && (parts[2] == "rounded" || parts[2] == "exact" || parts[2] == "blocks"))
    options.weights = parts[2];
  if (!flags.own_weights && parts[2] == "bf16") options.weights = "twin";
  if (const std::string& last = parts.back(); last.starts_with("kv-"))
    options.kv_cache_dtype = last.substr(3);
}

std::optional<ChatTemplate> chat_template_of(const Model& model, const VerifyFlags& flags) {
  try {
    return open_chat_template(model, flags.template_file);
  } catch (const Error&) {
    if (!flags.template_file.empty()) throw;
    return std::nullopt;
  }
}

namespace {

// Nothing, or what is wrong before a model is needed.
std::string outer_fault(const ServedAnswer& served, const VerifyFlags& flags) {
  for (const Receipt& receipt : served.receipts) {
    const int64_t size = std::ssize(receipt.prompt) + std::ssize(receipt.tokens);
    if (size > receipt.context)  // before anything is computed from them
      return fmt::format(
          "expected a prompt and an answer within the context of {} tokens, found {}",
          receipt.context, size);
    if (auto fault = signature_fault(receipt, flags); !fault.empty()) return fault;
  }
  return fault_between(served.receipts);
}

// Seconds in which one sequence alone generates the answer.
double generate(const Receipt& receipt, const std::shared_ptr<Model>& model,
                const Tokenizer& tokenizer, std::shared_ptr<const RequestAdapter> adapter) {
  InstanceOptions options{.model = model->options()};
  options.engine.scheduler.max_num_seqs = 1;
  options.engine.scheduler.max_model_len =
      static_cast<int32_t>(receipt.prompt.size() + receipt.tokens.size());
  if (adapter) options.engine.adapters = {.most = 1, .most_rank = kMostAdapterRank};
  Instance instance(options, model);
  TextEngine text(instance.engine(), tokenizer);
  Request request{.prompt = receipt.prompt, .params = receipt.params, .choice = receipt.choice};
  request.adapter = std::move(adapter);
  request.params.max_tokens = static_cast<int32_t>(receipt.tokens.size());
  const Timer timer;
  const TextAnswer answer = text.answer(std::move(request));
  const double seconds = timer.seconds();
  if (answer.tokens != receipt.tokens) fail("the answer that was generated is not the receipt's");
  return seconds;
}

// The findings about an answer.
struct Report {
  std::string fault;  // empty: it is confirmed
  std::vector<Verdict> verdicts;
  double generation_seconds = 0;  // 0: the answers were not generated again
  std::vector<std::string> prompts;

  int64_t tokens() const {
    int64_t sum = 0;
    for (const Verdict& verdict : verdicts) sum += verdict.tokens;
    return sum;
  }
  double seconds() const {
    double sum = 0;
    for (const Verdict& verdict : verdicts) sum += verdict.seconds;
    return sum;
  }
};

AnswerTexts answer_texts(const Model& model, const Tokenizer& tokenizer, const ChatTemplate* chat) {
  return {.tokenizer = tokenizer,
          .chat = chat,
          .end_tokens = end_tokens(model, tokenizer),
          .vocab = static_cast<int32_t>(model.spec().vocab),
          .model_defaults = open_sampling_defaults(model.options())};
}

// Computes every choice again, then holds the body and the request against what came out.
Report recompute(const ServedAnswer& served, const std::shared_ptr<Model>& shared,
                 const VerifyFlags& flags) {
  Model& model = *shared;
  Report report;
  const Tokenizer tokenizer = open_tokenizer(model);
  const auto chat = chat_template_of(model, flags);
  const ReceiptModel known = receipt_model(model, flags.template_file);
  const auto adapter = flags.adapter.empty() ? nullptr
                                             : open_adapter(flags.adapter, flags.adapter,
                                                            model.spec(), model.adapter_user());
  const AnswerTexts texts = answer_texts(model, tokenizer, chat ? &*chat : nullptr);
  std::optional<Asked> asked;
  SamplingParams shown;
  ask_for_shown(served, shown);
  if (!flags.request.empty()) {
    asked = read_asked(read_json(flags.request), served.receipts.front(), texts);
    shown = asked->request.base.params;
  }
  std::vector<TextAnswer> answers;
  for (const Receipt& receipt : served.receipts) {
    report.prompts.push_back(tokenizer.decode(receipt.prompt, {.skip_special = false}));
    const Verdict& verdict =
        report.verdicts.emplace_back(verify(receipt, known, model, tokenizer,
                                            {.prefix = flags.prefix,
                                             .logprobs = shown.logprobs,
                                             .prompt_logprobs = shown.prompt_logprobs,
                                             .logprobs_mode = shown.logprobs_mode,
                                             .adapter = adapter}));
    if (!verdict.is_confirmed) report.fault = verdict.sentence;
    if (!report.fault.empty()) return report;
    answers.push_back(verdict.answer);
  }
  if (asked) report.fault = request_difference(*asked, served.receipts);
  if (report.fault.empty() && !served.body.is_null() && flags.prefix == 0)
    report.fault = body_difference(served, answers, asked ? &asked->request : nullptr, texts);
  if (report.fault.empty() && flags.generates)
    for (const Receipt& receipt : served.receipts)
      report.generation_seconds += generate(receipt, shared, tokenizer, adapter);
  return report;
}

std::string verdict_sentence(const ServedAnswer& served, const Report& report) {
  if (!report.fault.empty()) return report.fault;
  if (served.receipts.size() == 1) return report.verdicts[0].sentence;
  return fmt::format("confirmed: {} choices of {} tokens and their logits", served.receipts.size(),
                     report.tokens());
}

void print_json(const ServedAnswer& served, const Report& report) {
  json::Array choices;
  for (size_t i = 0; i < report.verdicts.size(); ++i)
    choices.push_back(json::Object{{"prompt", report.prompts[i]},
                                   {"sampling", params_json(served.receipts[i].params)},
                                   {"text", report.verdicts[i].answer.text}});
  json::Value all = json::Object{{"confirmed", report.fault.empty()},
                                 {"sentence", verdict_sentence(served, report)},
                                 {"tokens", report.tokens()},
                                 {"seconds", report.seconds()},
                                 {"public_key", served.receipts.front().public_key},
                                 {"choices", std::move(choices)}};
  if (report.generation_seconds > 0) all.set("generation_seconds", report.generation_seconds);
  fmt::print("{}\n", json::dump(all, 2));
}

// The answer for a person to compare with what they asked and read.
void print_choices(const ServedAnswer& served, const Report& report) {
  for (size_t i = 0; i < served.receipts.size(); ++i) {
    const Receipt& receipt = served.receipts[i];
    if (i == 0 || report.prompts[i] != report.prompts[i - 1])
      fmt::print("prompt: {}\n", json::dump(report.prompts[i]));
    if (i == 0) {
      fmt::print("parameters: {}\n", json::dump(params_json(receipt.params)));
      if (!receipt.stop.empty())
        fmt::print("stop: {}\n", json::dump(json::Array(receipt.stop.begin(), receipt.stop.end())));
      if (!receipt.grammar.empty()) fmt::print("held to: {}\n", receipt.grammar);
    }
    fmt::print("text: {}\n", json::dump(report.verdicts[i].answer.text));
  }
}

void print_text(const ServedAnswer& served, const Report& report, const VerifyFlags& flags) {
  if (report.generation_seconds > 0)
    fmt::print("generated at batch 1 in {:.3f} s, checked in {:.3f} s: {:.1f} times faster\n",
               report.generation_seconds, report.seconds(),
               report.generation_seconds / report.seconds());
  fmt::print("{}\n", verdict_sentence(served, report));
  if (!report.fault.empty()) return;
  const Receipt& first = served.receipts.front();
  fmt::print("{} of {}, {}, {:.3f} s\n", first.id, first.name, first.model.arithmetic,
             report.seconds());
  if (!flags.unsigned_too) fmt::print("signed by {}\n", first.public_key);
  if (flags.prefix == 0) print_choices(served, report);
}

int run_verify(VerifyFlags flags) {
  const json::Value answer = read_json(flags.answer);
  if (!numbers_receipt_in(answer).is_null()) return verify_numbers(answer, std::move(flags));
  const ServedAnswer served = read_served_answer(answer);
  Report report{.fault = outer_fault(served, flags)};
  if (report.fault.empty()) {
    take_arithmetic(served.receipts.front().model.arithmetic, flags);
    report = recompute(served, open_with_progress(flags.model), flags);
  }
  if (flags.model.json)
    print_json(served, report);
  else
    print_text(served, report, flags);
  return report.fault.empty() ? 0 : 1;
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
      "verify", "Recompute an answer by its receipts; exit with 0 if it is confirmed, 1 if not");
  auto flags = std::make_shared<VerifyFlags>();
  command
      ->add_option(
          "ANSWER", flags->answer,
          "File with an answer that has receipts, or with receipts; - is the standard input")
      ->required();
  command->add_option(
      "--request", flags->request,
      "File with the body of the request that the client sent: the receipts must be "
      "of it and of nothing more");
  add_model_flags(*command, flags->model);
  command->add_option("--prefix", flags->prefix, "Check only the first N tokens; 0 checks all")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--public-key", flags->public_key, "Require this signing key (hexadecimal)");
  command->add_flag("--no-signature", flags->unsigned_too, "Do not check the signature");
  command->add_option("--chat-template", flags->template_file,
                      "The server's --chat-template, if it had one");
  command->add_option(
      "--lora", flags->adapter,
      "The adapter that the answer was made with, a directory or a GGUF file, if it had one");
  command->add_flag("--time-generation", flags->generates,
                    "Also generate the answer at batch 1 and compare the times");
  show_first(*command,
             {{"What is checked",
               {"--request", "--prefix", "--public-key", "--no-signature", "--lora", "--json"}},
              {"Speed", {"--device", "--threads", "--tensor-parallel-size"}}});
  command->callback([&action, flags, command] {
    flags->own_arithmetic = command->count("--arith") > 0;
    flags->own_weights = command->count("--weights") > 0;
    action = [flags] { return run_verify(*flags); };
  });
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
