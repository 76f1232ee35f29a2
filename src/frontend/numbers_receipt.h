// A receipt of numbers: the question, as the client sent it, and the model's numbers. Another owner
// of the model reads the question again, computes the numbers again and makes the same answer
// (docs/receipts.md, decisions).
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "frontend/questions.h"
#include "frontend/receipt.h"

namespace invar {

struct NumbersReceipt {
  std::string id;  // of the answer
  int64_t created = 0;
  std::string name;  // of the model, as it was served
  int32_t context = 0;
  ReceiptModel model;
  std::string endpoint, body;        // the path and the JSON that it was asked with
  std::vector<std::string> numbers;  // of each request: numbers_text

  std::string public_key, signature;  // hexadecimal; empty: it is not signed

  bool operator==(const NumbersReceipt&) const = default;
};

// One number as the shortest decimal that reads back as its f64; of several the SHA-256 of their
// f32, little-endian, in hexadecimal.
std::string numbers_text(const std::vector<float>& numbers);

// The bytes that are signed: everything but the signature.
std::string signed_text(const NumbersReceipt& receipt);
json::Value to_json(const NumbersReceipt& receipt);
// Whether a receipt's JSON is one of numbers.
bool is_numbers_receipt(const json::Value& value);
// Throws Error as receipt_from does.
NumbersReceipt numbers_receipt_from(const json::Value& value);

// Completed with the numbers and signed.
json::Value signed_receipt(NumbersReceipt receipt, const Numbers& numbers, const ReceiptKey& key);
// The answer shows these members beside the numbers; the receipt is left empty.
NumbersHead head_of(const NumbersReceipt& receipt);

}  // namespace invar
