// The receipt of an answer as it was computed.
#pragma once

#include "engine/request.h"
#include "frontend/answer_builder.h"
#include "frontend/receipt.h"

namespace invar {

// The receipt's part on the request; the caller adds its owner and its model.
Receipt receipt_of(const Request& request);
// Completed with the answer and signed.
json::Value signed_receipt(Receipt receipt, const TextAnswer& answer, const ReceiptKey& key);

}  // namespace invar
