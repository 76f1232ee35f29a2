// invar verify of an answer whose receipt is of numbers: a decision, a relevance, vectors.
#include <fmt/format.h>

#include "base/error.h"
#include "session/open.h"
#include "session/questions.h"
#include "session/served_answer.h"
#include "session/verify.h"
#include "verify.h"

namespace invar::cli {

namespace {

// A body but for what asks for a receipt.
json::Value question_in(json::Value body) {
  if (body.is_object())
    std::erase_if(body.as_object(),
                  [](const json::Member& member) { return member.first == "receipt"; });
  return body;
}

// Where the receipt's question is not the request's; empty, or one sentence.
std::string question_difference(const NumbersReceipt& receipt, const json::Value& request) {
  const json::Value said = question_in(json::parse(receipt.body, "the receipt's question"));
  const std::string found = first_difference(question_in(request), said, "");
  return found.empty() ? found : "the receipt is not of this request: " + found;
}

NumbersVerdict recomputed(const NumbersReceipt& receipt, const VerifyFlags& flags) {
  const std::shared_ptr<Model> model = open_with_progress(flags.model);
  const auto chat = chat_template_of(*model, flags);
  return verify(receipt, receipt_model(*model, flags.template_file), model, open_tokenizer(*model),
                chat ? &*chat : nullptr);
}

void print_verdict(const NumbersReceipt& receipt, const NumbersVerdict& verdict,
                   const VerifyFlags& flags) {
  if (flags.model.json)
    return fmt::print("{}\n", json::dump(json::Object{{"confirmed", verdict.is_confirmed},
                                                      {"sentence", verdict.sentence},
                                                      {"numbers", std::ssize(receipt.numbers)},
                                                      {"seconds", verdict.seconds},
                                                      {"public_key", receipt.public_key},
                                                      {"endpoint", receipt.endpoint},
                                                      {"question", receipt.body}},
                                         2));
  fmt::print("{}\n", verdict.sentence);
  if (!verdict.is_confirmed) return;
  fmt::print("{} of {}, {}, {:.3f} s\n", receipt.id, receipt.name, receipt.model.arithmetic,
             verdict.seconds);
  if (!flags.unsigned_too) fmt::print("signed by {}\n", receipt.public_key);
  fmt::print("question: {}\n", receipt.body);
}

}  // namespace

json::Value numbers_receipt_in(const json::Value& answer) {
  if (is_numbers_receipt(answer)) return answer;
  const json::Value* own = answer.find("receipt");
  if (own && is_numbers_receipt(*own)) return *own;
  const json::Array* list = receipts_alone(answer);
  if (!list || list->size() != 1) return {};
  const json::Value& one = list->front();
  return is_numbers_receipt(one) ? one : json::Value();
}

int verify_numbers(const json::Value& answer, VerifyFlags flags) {
  if (flags.prefix != 0 || flags.generates || !flags.adapter.empty())
    fail_usage(
        "expected neither --prefix, --time-generation nor --lora beside a receipt of numbers, "
        "which are checked whole and computed by the model alone");
  const NumbersReceipt receipt = numbers_receipt_from(numbers_receipt_in(answer));
  NumbersVerdict verdict{.sentence = signature_fault(receipt, flags)};
  if (verdict.sentence.empty() && !flags.request.empty())
    verdict.sentence = question_difference(receipt, read_json(flags.request));
  if (verdict.sentence.empty()) {
    take_arithmetic(receipt.model.arithmetic, flags);
    verdict = recomputed(receipt, flags);
  }
  // An answer, not receipts alone.
  if (verdict.is_confirmed && answer.find("receipt")) {
    const std::string found = first_difference(json::parse(verdict.body, "the answer"), answer, "");
    if (!found.empty()) verdict.sentence = "the body differs from its receipt: " + found;
    verdict.is_confirmed = found.empty();
  }
  print_verdict(receipt, verdict, flags);
  return verdict.is_confirmed ? 0 : 1;
}

}  // namespace invar::cli
