// Receipts of answers: "receipt": true in a request, and GET /v1/receipts/ID from the journal.
#include <algorithm>

#include "admission.h"
#include "errors.h"
#include "frontend/answer_receipt.h"

namespace invar::server {

namespace {

bool is_baseline(const std::string& identity) {
  return identity.find("/control/") != identity.npos;
}

// The receipt of choice i of the request, but for the answer.
Receipt head_of(const Admitted& admitted, const ReceiptModel& model, int32_t context, size_t i) {
  Receipt receipt = receipt_of(admitted.requests[i]);
  receipt.id = admitted.head.id;
  receipt.created = admitted.head.created;
  receipt.name = admitted.head.model;
  receipt.context = context;
  receipt.model = model;
  return receipt;
}

}  // namespace

void Admission::expect_receipts(const ReceiptModel& model) const {
  if (!model_.receipt_key)
    throw ApiError{400, "receipts need a server with --receipt-key", "", "receipt"};
  if (is_baseline(model.arithmetic))
    throw ApiError{400, "the baseline's answers cannot be computed again: it gives no receipts", "",
                   "receipt"};
}

void Admission::prepare_receipts(Admitted& admitted) const {
  const ReceiptModel model = answering_model(admitted.requests.front().adapter.get());
  expect_receipts(model);
  const int32_t context = backend_.facts().max_model_len;
  std::vector<Receipt> heads;
  for (size_t i = 0; i < admitted.requests.size(); ++i)
    heads.push_back(head_of(admitted, model, context, i));
  admitted.request.make_receipt = [heads = std::move(heads), key = model_.receipt_key](
                                      const TextAnswer& answer, size_t i) {
    return signed_receipt(heads[i], answer, *key);
  };
}

void Admission::ask_for_receipt(Admitted& admitted) const {
  using openai::Endpoint;
  constexpr Endpoint kWithReceipts[] = {Endpoint::completions, Endpoint::chat, Endpoint::messages,
                                        Endpoint::responses};
  if (std::ranges::find(kWithReceipts, admitted.request.endpoint) == std::end(kWithReceipts))
    throw ApiError{400, "receipts are of completions, chat completions, messages and responses"};
  if (admitted.request.prompt_only) throw ApiError{400, "the request has a prompt and no answer"};
  admitted.request.receipt = admitted.request.receipt_only = true;
  for (Request& request : admitted.requests) request.hash_logits = true;
  prepare_receipts(admitted);
}

}  // namespace invar::server
