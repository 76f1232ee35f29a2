// The two kinds of receipts that `invar verify` checks share these flags and checks.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "command.h"
#include "frontend/chat_template.h"
#include "frontend/receipt.h"

namespace invar::cli {

struct VerifyFlags {
  ModelFlags model;
  std::string answer, request, public_key, template_file, adapter;
  bool unsigned_too = false, generates = false;
  bool own_arithmetic = false, own_weights = false;  // named by the user, not by the receipt
  int64_t prefix = 0;
};

json::Value read_json(const std::string& file);
// The options of a model that computes in a receipt's arithmetic, "invar-1/ORDER/WEIGHT MODE/...",
// wherever the answer was made.
void take_arithmetic(const std::string& arithmetic, VerifyFlags& flags);
// Nothing, or what is wrong with who signed it.
template <typename R>
std::string signature_fault(const R& receipt, const VerifyFlags& flags) {
  if (!flags.public_key.empty() && receipt.public_key != flags.public_key)
    return fmt::format("the key differs: the receipt names {}, expected {}",
                       json::quoted(receipt.public_key), flags.public_key);
  if (!flags.unsigned_too && !is_signed(receipt))
    return "the signature differs: it is not its public key's over what the receipt says";
  return {};
}
std::optional<ChatTemplate> chat_template_of(const Model& model, const VerifyFlags& flags);

// The receipt of numbers that an answer has or is; null: it is another answer.
json::Value numbers_receipt_in(const json::Value& answer);
// Checks such an answer; returns the command's status.
int verify_numbers(const json::Value& answer, VerifyFlags flags);

}  // namespace invar::cli
