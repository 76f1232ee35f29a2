#include "frontend/numbers_receipt.h"

#include "base/canonical_json.h"
#include "base/ends.h"
#include "base/error.h"
#include "base/sha256.h"
#include "frontend/receipt_members.h"

namespace invar {

namespace {

json::Value unsigned_json_of(const NumbersReceipt& r) {
  json::Value all = json::Object{{"invar_receipt", kReceiptVersion},
                                 {"id", r.id},
                                 {"created", r.created},
                                 {"model", r.name},
                                 {"context", r.context}};
  for (auto& [name, value] : model_members(r.model)) all.set(name, std::move(value));
  all.set("request", json::Object{{"endpoint", r.endpoint}, {"body", r.body}});
  all.set("answer", json::Object{{"numbers", json::Array(r.numbers.begin(), r.numbers.end())}});
  all.set("public_key", r.public_key);
  return all;
}

}  // namespace

std::string numbers_text(const std::vector<float>& numbers) {
  if (numbers.size() == 1) return number_text(static_cast<double>(first_of(numbers)));
  return to_hex(sha256(std::as_bytes(std::span(numbers))));
}

std::string signed_text(const NumbersReceipt& receipt) {
  return json::canonical(unsigned_json_of(receipt));
}

json::Value to_json(const NumbersReceipt& receipt) {
  json::Value all = unsigned_json_of(receipt);
  all.set("signature", receipt.signature);
  return all;
}

bool is_numbers_receipt(const json::Value& value) {
  const json::Value* request = value.find("request");
  return value.find("invar_receipt") && request && request->find("endpoint");
}

NumbersReceipt numbers_receipt_from(const json::Value& value) {
  ReceiptMembers in(value, "a receipt");
  NumbersReceipt r;
  take_head(in, r);
  ReceiptMembers request(in.take("request"), "its request");
  request.take("endpoint", r.endpoint);
  request.take("body", r.body);
  request.expect_end();
  ReceiptMembers answer(in.take("answer"), "its answer");
  answer.take("numbers", r.numbers);
  answer.expect_end();
  in.take("public_key", r.public_key);
  in.take("signature", r.signature);
  in.expect_end();
  return r;
}

json::Value signed_receipt(NumbersReceipt receipt, const Numbers& numbers, const ReceiptKey& key) {
  for (const std::vector<float>& one : numbers) receipt.numbers.push_back(numbers_text(one));
  key.sign(receipt);
  return to_json(receipt);
}

NumbersHead head_of(const NumbersReceipt& receipt) {
  return {.id = receipt.id,
          .created = receipt.created,
          .model = receipt.name,
          .fingerprint = fingerprint_of(receipt.model)};
}

}  // namespace invar
